"""Hooks of a kind whose specs run pods: roles, requests and lifecycle of its workloads, and their look in the graph.

Quota and capacity checks, the graph, the diff and the built-in policies access workloads only through these hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from avactl.program.local_run import LocalHooks
from avactl.program.program import Item, Program

if TYPE_CHECKING:
    from avactl.spec.schema.base import Model

S = TypeVar("S", bound="Model")

FOLLOWERS_LATER = 600
"""Seconds after its leader's deadline at which a following Job is terminated in any case."""


class Lifecycle(Enum):
    """Lifecycle of a spec's pods. Quota checks depend on it; the graph lists workloads in this order."""

    JOB = "job"
    """Runs to completion. A job that exceeds its quota waits until another one ends."""
    SERVICE = "service"
    """Runs permanently, so the services of a team must fit its quota together."""
    SESSION = "session"
    """Runs until its user stops it. Sessions that exceed the quota together get a warning."""


class GpuCompute(Protocol):
    """Requests of one pod: a `Compute`, or a spec with the same fields. `cpu` and `memory` are quantities."""

    @property
    def gpus(self) -> int | float: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def pool(self) -> str | None: ...
    @property
    def tolerates(self) -> Sequence[str]: ...
    @property
    def cpu(self) -> str | None: ...
    @property
    def memory(self) -> str | None: ...


class ResourceRequests(Protocol):
    """CPU and memory of one pod, as quantities."""

    @property
    def cpu(self) -> str: ...
    @property
    def memory(self) -> str: ...


class WorkloadRole(NamedTuple):
    """Identical pods of a spec."""

    path: tuple[str | int, ...]
    """Path of the role's compute in the document."""
    compute: GpuCompute
    least: int
    """Pods that must run at the same time."""
    most: int
    """Maximum number of pods."""
    replicas_path: tuple[str, ...] = ()
    """Path of the value that sets `least`, for messages; () for `path`."""


class Unpinned(NamedTuple):
    """A mutable version reference: its meaning can change while the spec stays the same."""

    path: tuple[str | int, ...]
    message: str
    remedy: str


def _no_summary(item: Item) -> str:
    return ""


def _none_unpinned(item: Item) -> Iterable[Unpinned]:
    return ()


def _not_exposed(item: Item) -> Sequence[str]:
    return ()


class MadeVersion(NamedTuple):
    """A version of a dataset that a job makes."""

    dataset: tuple[str, str, str]
    """Key of the dataset."""
    version: str
    jobs: tuple[str, ...]
    """Names of the Jobs that have then succeeded."""


class Home(NamedTuple):
    """Persistent directory of a session, which jobs of the team can take code from."""

    claim: str
    """Name of its PersistentVolumeClaim."""
    shared: bool
    """True if several nodes can mount it."""
    user: int
    group: int


@dataclass(frozen=True, slots=True)
class WorkloadHooks(Generic[S]):
    """Hooks of a kind whose specs run pods."""

    lifecycle: Lifecycle
    noun: str
    """Singular noun for one spec in messages, e.g. `job`."""
    roles: Callable[[Item[S]], Iterable[WorkloadRole]]
    """The pods that a spec requests while it runs; none if it is stopped or suspended."""
    default_requests: Callable[[Item[S], Program], ResourceRequests] | None = None
    """Defaults for CPU and memory that a role omits; None if roles always set both."""
    checks_capacity: bool = False
    """True if the kind's `check` calls `gpu_problems` itself, because it uses more than the roles (e.g. the surge of a
    rollout). By default, the check pass does it for each role with its `least` pods."""
    exposed_to: Callable[[Item[S]], Sequence[str]] = _not_exposed
    """Other teams whose pods may connect to the service."""

    stop: str = "remove unused ones"
    """Remedy for sessions that exceed their quota together."""

    badge: str = "run"
    """Badge in the graph, at most five characters."""
    summary: Callable[[Item[S]], str] = _no_summary
    """One line about a spec in the graph, beside its name and GPUs."""

    home: Callable[[Item[S]], Home] | None = None
    """Returns the persistent directory of a session; None if the kind has none."""

    timeout: Callable[[Item[S]], str | None] | None = None
    """Returns the maximum run time of a job as a duration, or None; None if the kind has no timeout."""
    has_checkpoint: Callable[[Item[S]], bool] | None = None
    """Returns True if a job saves checkpoints; None if the kind has no checkpoints."""
    preemptible: Callable[[Item[S]], bool] | None = None
    """Returns False for a job that is never preempted, so that it may use guaranteed GPUs only; None: all may be."""
    unpinned: Callable[[Item[S]], Iterable[Unpinned]] = _none_unpinned
    """Mutable versions, in addition to images, for the policy `versions-fixed`."""
    makes: Callable[[Item[S], Program], MadeVersion | None] | None = None
    """Returns the version of a dataset that a job makes; None if the kind makes none."""
    local: LocalHooks[S] | None = None
    """How a job runs as processes on one machine; None if it cannot."""
