"""Cache engines: each is a package beside this module with an `Engine` as `ENGINE`, and the name of `spec.engine`.

No module outside an engine's package names the engine; others ask `engine_of(tier)`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from avactl.diagnostics import Diagnostic
from avactl.program.images import Use
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

DEFAULT = "alluxio"
"""The engine of tiers that name none."""


class Needs(NamedTuple):
    """Requests of one pod."""

    cpu: str = "0"
    """CPU cores, as a Kubernetes quantity."""
    memory: int = 0
    """Bytes."""


class Loaded(NamedTuple):
    """A version of a dataset in a tier."""

    version: str
    url: str
    """Its directory in the object store."""
    path: str
    """Its directory in the tier's namespace."""
    prewarm: bool
    """True if it is loaded before jobs read it."""


def _nothing(item: Item, program: Program, tier: Item) -> Iterable[Diagnostic]:
    return ()


def _no_jobs(item: Item, program: Program, tier: Item, versions: Sequence[Loaded]) -> list[Manifest]:
    return []


def _no_fuse(item: Item) -> Needs:
    return Needs()


@dataclass(frozen=True, slots=True)
class Engine:
    """Definition of an engine: facts about it, and hooks for checks and lowering."""

    title: str
    """Its name in messages."""
    image: Use
    """Key of `Cluster.spec.images` with its image."""
    check: Callable[[Item, Program], Iterable[Diagnostic]]
    """Yields the problems of a tier that only this engine has, including settings that it cannot carry out."""
    lower: Callable[[Item, Program], list[Manifest]]
    """Returns the objects of a tier, without its datasets and the ConfigMap for the cache daemon."""
    volume: Callable[[Item, Program, str, str, bool], Body]
    """Returns fields of a PersistentVolume's spec, its source among them. Arguments: tier, program, name of the volume,
    directory in the tier's namespace, read-only."""
    worker: Callable[[Item], Needs]
    """Requests of a worker's pod, or of what does its work, with the MEM level."""
    shared: bool
    """True if the workers of a tier form one cache; False if each machine has a copy of its own."""
    fuse: Callable[[Item], Needs] = _no_fuse
    """Requests of the FUSE pod that runs on every machine."""
    host_mount: bool = False
    """True if FUSE mounts the tier at `dataset_access.host_path` on every machine."""
    reserved: Callable[[Item], int] = lambda item: 0
    """Bytes of each storage level that hold no data."""
    disk_share: Fraction = Fraction(1)
    """Share of a disk that it fills at most, whatever the quota."""
    check_dataset: Callable[[Item, Program, Item], Iterable[Diagnostic]] = _nothing
    """Yields the problems of a dataset in the tier, its last argument."""
    dataset: Callable[[Item, Program, Item, Sequence[Loaded]], list[Manifest]] = _no_jobs
    """Returns the objects that load and free the versions of a dataset in a tier."""
    daemon: Callable[[Item], Body] | None = None
    """Returns `tier.json` for the cache daemon; None if the daemon does not know the engine."""
    directories: Callable[[Item, Program, Item, str, Sequence[str]], Manifest] | None = None
    """Returns a Job that creates directories in the stores. Arguments: owner, program, tier, name of the Job without
    digest, directories. None if team buckets cannot be in a tier of this engine."""


def names() -> list[str]:
    """Return the names of all engines: the packages in this directory."""
    package = importlib.import_module(__package__)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)


@cache
def engine(name: str) -> Engine:
    """Return an engine by name. Raises ModuleNotFoundError."""
    found: Engine = importlib.import_module(f"{__package__}.{name}").ENGINE
    return found


def engine_of(tier: Any) -> Engine:
    """Return the engine of a tier."""
    return engine(tier.spec.engine)
