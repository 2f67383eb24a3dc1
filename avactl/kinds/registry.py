"""The kinds by name. A kind is one module, one example and one line here; all else derives from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from avactl.diagnostics import Diagnostic
from avactl.kinds.lowering.ownership import Owned
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program

if TYPE_CHECKING:
    from avactl.kinds.base import Resource

Fact = str | int | float | None


def _no_item_checks(item: Item, program: Program) -> Iterable[Diagnostic]:
    return ()


def _no_program_checks(program: Program) -> Iterable[Diagnostic]:
    return ()


def _no_facts(item: Item, program: Program) -> Mapping[str, Fact]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """Everything that avactl knows of a kind."""

    model: type[Resource]
    """Typed document; its docstring and field descriptions are what `avactl explain` shows."""
    lower: Callable[[Item, Program], list[Manifest]]
    """The Kubernetes objects of one spec. Pure."""
    check: Callable[[Item, Program], Iterable[Diagnostic]] = _no_item_checks
    """Problems of one spec in its surroundings."""
    check_all: Callable[[Program], Iterable[Diagnostic]] = _no_program_checks
    """Problems of all specs of the kind together, such as sums."""
    facts: Callable[[Item, Program], Mapping[str, Fact]] = _no_facts
    """The few numbers and words that a person would want to see change: shown by `diff` and `graph`."""
    owned: tuple[Owned, ...] = ()
    """Fields that controllers write in the objects of the kind; their manifests say so too (`Manifest.owned`)."""

    @property
    def name(self) -> str:
        return self.model.KIND


_MODULES = {
    "Cluster": "avactl.kinds.cluster",
    "MachineType": "avactl.kinds.machine_type",
    "NodePool": "avactl.kinds.node_pool",
    "Team": "avactl.kinds.team",
    "Quota": "avactl.kinds.quota",
    "CacheTier": "avactl.kinds.cache_tier",
    "Dataset": "avactl.kinds.dataset",
    "Workspace": "avactl.kinds.workspace",
    "TrainingJob": "avactl.kinds.training",
    "ServingDeployment": "avactl.kinds.serving",
}
"""Kind → module that has it as `KIND`. Imported when first asked for: start-up counts."""

_LOADED: dict[str, Kind] = {}


def names() -> list[str]:
    """All kinds, in the order in which a platform is built up."""
    return [*_MODULES, *added()]


def added() -> list[str]:
    """The kinds that `register` added."""
    return [name for name in _LOADED if name not in _MODULES]


def kind(name: str) -> Kind:
    """The kind of that name. Raises KeyError."""
    found = _LOADED.get(name)
    if found is None:
        found = _LOADED[name] = importlib.import_module(_MODULES[name]).KIND
    return found


def register(new: Kind) -> None:
    """Add a kind at run time, e.g. from a plug-in."""
    if new.name in _MODULES or new.name in _LOADED:
        raise ValueError(f"kind {new.name!r} is registered already; give the model another KIND")
    _LOADED[new.name] = new


def unregister(name: str) -> None:
    """Take back what `register` added. Raises KeyError for a kind that is not there or is built in."""
    if name in _MODULES:
        raise KeyError(f"{name} is built in")
    del _LOADED[name]
