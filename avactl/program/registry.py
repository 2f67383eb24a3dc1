"""The kinds by name. A kind is one package, one example and one line here.

No module outside a kind's package names a workload kind; other modules use the hooks of `Kind`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from avactl.diagnostics import Diagnostic
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import HasSpec, Item, Program, name_label
from avactl.program.workload import Lifecycle, WorkloadHooks
from avactl.spec.documents.document import Document, Path

if TYPE_CHECKING:
    from avactl.spec.schema.base import Model, Resource

S = TypeVar("S", bound="Model")
Fact = str | int | float | None


class ObjectEffect(NamedTuple):
    """Effect of a change on one Kubernetes object."""

    kind: str
    """Kubernetes kind, e.g. `Job`."""
    name: str
    renamed: bool
    """True if it is deleted and created under another name."""
    starts_pods: bool
    """True if its pods are restarted, or it is new."""
    loses_data: bool
    """True if data that exists nowhere else is deleted with it."""


class WrittenObject(NamedTuple):
    """A manifest that a spec has as it is."""

    body: Body
    namespace: str
    """Namespace; "" for an object of the cluster."""
    doc: Document
    """Document that has it: the spec, or a file that the spec names."""
    path: Path
    """Its path in the document."""


def _none_written(item: Item, program: Program) -> Iterable[WrittenObject]:
    return ()


def _no_inner_specs(item: Item) -> Iterable[Item]:
    return ()


def _no_item_checks(item: Item, program: Program) -> Iterable[Diagnostic]:
    return ()


def _no_program_checks(program: Program) -> Iterable[Diagnostic]:
    return ()


def _no_facts(item: Item, program: Program) -> Mapping[str, Fact]:
    return {}


def _no_impact(old: Item, new: Item, effects: Sequence[ObjectEffect]) -> str | None:
    return None


def _no_identity(item: Item) -> Hashable:
    return None


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """Definition of a kind: its model, checks, lowering and hooks."""

    model: type[HasSpec[S]]
    """Typed document; `avactl explain` shows its docstring and field descriptions."""
    lower: Callable[[Item[S], Program], list[Manifest]]
    """Pure function that returns the Kubernetes objects of one spec."""
    check: Callable[[Item[S], Program], Iterable[Diagnostic]] = _no_item_checks
    """Yields the problems of one spec, in the context of the program."""
    check_all: Callable[[Program], Iterable[Diagnostic]] = _no_program_checks
    """Yields the problems of all specs of the kind together, such as sums."""
    facts: Callable[[Item[S], Program], Mapping[str, Fact]] = _no_facts
    """Headline values, shown by `diff` and `graph`."""
    owned: tuple[Owned, ...] = ()
    """Fields that controllers write in the objects of the kind; also listed in `Manifest.owned`."""
    workload: WorkloadHooks[S] | None = None
    """Hooks for the pods of its specs; None if the kind runs no pods for teams."""
    impact: Callable[[Item[S], Item[S], Sequence[ObjectEffect]], str | None] = _no_impact
    """Impact of a changed spec on its workload, as text for the diff; None if the objects determine it."""
    identity: Callable[[Item[S]], Hashable] = _no_identity
    """A value that a rename cannot change: similar specs with different values are not renames."""
    written: Callable[[Item[S], Program], Iterable[WrittenObject]] = _none_written
    """Yields the manifests that a spec has as they are; those that are no Kubernetes objects are left out."""
    inner: Callable[[Item[S]], Iterable[Item]] = _no_inner_specs
    """Yields specs of other kinds inside a spec, which the repository's policies for those kinds check, too."""

    def __post_init__(self) -> None:
        # Quotas, the graph and the readers of datasets ask for the one cluster and the namespace of such a spec.
        if self.workload is not None and _resource_class(self).SCOPE != "team":
            raise ValueError(f"kind {self.name!r} has workload hooks, so its model needs SCOPE = 'team'")

    @property
    def name(self) -> str:
        return self.model.KIND

    @property
    def has_written(self) -> bool:
        """True if its specs can have manifests as they are."""
        return self.written is not _none_written


def _resource_class(kind: Kind[Any]) -> type[Resource]:
    from avactl.spec.schema.base import Resource  # the names of kinds are needed without it

    model: type[object] = kind.model
    assert issubclass(model, Resource)
    return model


class _Entry(NamedTuple):
    module: str
    """Module that has the kind as `KIND`."""
    lifecycle: Lifecycle | None = None
    """Lifecycle of its workload hooks, known without an import. A test checks that both are equal."""
    has_written: bool = False
    """True if its specs can have manifests as they are; also known without an import."""


_KINDS = {
    "Cluster": _Entry("avactl.kinds.cluster"),
    "MachineType": _Entry("avactl.kinds.machine_type"),
    "NodePool": _Entry("avactl.kinds.node_pool"),
    "Team": _Entry("avactl.kinds.team"),
    "Quota": _Entry("avactl.kinds.quota"),
    "CacheTier": _Entry("avactl.kinds.cache_tier"),
    "Dataset": _Entry("avactl.kinds.dataset"),
    "Workspace": _Entry("avactl.kinds.workspace", Lifecycle.SESSION),
    "TrainingJob": _Entry("avactl.kinds.training", Lifecycle.JOB),
    "ServingDeployment": _Entry("avactl.kinds.serving", Lifecycle.SERVICE),
    "Pipeline": _Entry("avactl.kinds.pipeline", Lifecycle.JOB),
    "ProcessingJob": _Entry("avactl.kinds.processing", Lifecycle.JOB),
    "KubernetesObjects": _Entry("avactl.kinds.kubernetes_objects", has_written=True),
}
"""All kinds, dependencies first. Imported on first use, to keep start-up fast."""

_LOADED: dict[str, Kind[Any]] = {}


def kind_names() -> list[str]:
    """Return the names of all kinds, dependencies first."""
    return list(_KINDS)


def get_kind(name: str) -> Kind[Any]:
    """Return the kind with that name. Raises KeyError."""
    found = _LOADED.get(name)
    if found is None:
        found = _LOADED[name] = importlib.import_module(_KINDS[name].module).KIND
    return found


def get_model(name: str) -> type[Resource]:
    """Return the class of a kind's documents. Raises KeyError."""
    return _resource_class(get_kind(name))


def get_lifecycle(name: str) -> Lifecycle | None:
    """Return the lifecycle of a kind's workloads, or None, without imports. Raises KeyError."""
    return _KINDS[name].lifecycle


def workload_kinds(only: Lifecycle | None = None) -> list[str]:
    """Return the kinds whose specs run pods, ordered as `kind_names`, without imports; `only`: of one lifecycle."""
    return [name for name in kind_names() if (found := get_lifecycle(name)) is not None and only in (None, found)]


def written_kinds() -> list[str]:
    """Return the kinds whose specs can have manifests as they are, without imports."""
    return [name for name, kind in _KINDS.items() if kind.has_written]


def kind_with_label(value: str) -> str | None:
    """Return the kind whose objects have this value in the label `app.kubernetes.io/name`, or None."""
    return next((name for name in _KINDS if name_label(name) == value), None)
