"""Hooks of a kind whose jobs can run as processes on one machine: its pods there, and what differs from a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item

S = TypeVar("S")


class LocalRole(NamedTuple):
    """The pods of one Job."""

    role: str
    job: str
    """Name of the compiled Job."""
    leads: bool
    """True if the job ends when these pods have ended."""
    replicas: int
    skipped: str = ""
    """Reason why the pods are not needed on one machine."""
    linger: float = 0
    """Seconds that a following pod may go on after the leading ones."""
    stops_last: bool = False
    """True if the pods stay while the leading ones of a stopped job end."""
    args: Sequence[str] | None = None
    """Arguments instead of the compiled ones."""


def _no_env(role: str, index: int) -> Mapping[str, str]:
    return {}


class LocalRun(NamedTuple):
    """A job on one machine."""

    roles: Sequence[LocalRole]
    """The leading role first."""
    first_pod_decides: bool = False
    """True if the job has succeeded when the first pod has."""
    timeout: float | None = None
    """Seconds that a run may take."""
    files: Mapping[tuple[str, str], str] = {}
    """Texts by ConfigMap and key that replace the compiled ones."""
    env: Callable[[str, int], Mapping[str, str]] = _no_env
    """Returns further variables by role and index; those of the spec win."""
    checkout: str = ""
    """Mount path of code that pods fetch; "" if the image has the code."""
    code: str = ""
    """Source of that code on a cluster."""
    data: Sequence[tuple[str, str]] = ()
    """Mount paths and names of datasets."""
    notes: Sequence[str] = ()
    """Further differences to a cluster that a user should know."""


class LocalHooks(NamedTuple, Generic[S]):
    """How jobs of a kind run on one machine."""

    run: Callable[[Item[S]], LocalRun]
    with_workers: Callable[[Item[S], int], Item[S] | Diagnostic]
    """Returns the spec with another number of workers, or why it cannot have it."""
