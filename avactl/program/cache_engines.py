"""Cache engines: each is a package in `avactl/kinds/cache_tier` with an `EngineRecord` as `ENGINE`, named as
in `spec.engine`.

No module outside an engine's package names the engine; others ask `engine_of(tier)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from avactl.contracts.cache import TierConfig
from avactl.diagnostics import Diagnostic
from avactl.program.dataset_listing import DatasetListing
from avactl.program.images import Use
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec
from avactl.spec.platform.engine_names import ENGINES
from avactl.spec.platform.team import TeamSpec


class EngineNeeds(NamedTuple):
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
    listing: DatasetListing | None = None
    """Its list of objects, if it has one."""


def _no_problems(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Iterable[Diagnostic]:
    return ()


def _no_jobs(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], versions: Sequence[Loaded]
) -> list[Manifest]:
    return []


def _no_fuse(item: Item[CacheTierSpec]) -> EngineNeeds:
    return EngineNeeds()


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """Definition of an engine: facts about it, and hooks for checks and lowering."""

    title: str
    """Its name in messages."""
    image: Use
    """Key of `Cluster.spec.images` with its image."""
    check: Callable[[Item[CacheTierSpec], Program], Iterable[Diagnostic]]
    """Yields the problems of a tier that only this engine has, including settings that it cannot carry out."""
    lower: Callable[[Item[CacheTierSpec], Program], list[Manifest]]
    """Returns the objects of a tier, without its datasets and the ConfigMap for the cache daemon."""
    volume: Callable[[Item[CacheTierSpec], Program, str, str, bool], Body]
    """Returns fields of a PersistentVolume's spec, its source among them. Arguments: tier, program, name of the volume,
    directory in the tier's namespace, read-only."""
    worker: Callable[[Item[CacheTierSpec]], EngineNeeds]
    """Requests of a worker's pod, or of what does its work, with the MEM level."""
    shared: bool
    """True if the workers of a tier form one cache; False if each machine has a copy of its own."""
    fuse: Callable[[Item[CacheTierSpec]], EngineNeeds] = _no_fuse
    """Requests of the FUSE pod that runs on every machine."""
    copies: bool = False
    """True if it copies versions: one with a list of objects then has a directory of its own, with these only."""
    mount_options: Callable[[Item[CacheTierSpec]], Sequence[str]] = lambda item: ()
    """Options of mounts that pods have, which apply only when they are mounted anew."""
    host_mount: bool = False
    """True if FUSE mounts the tier at `dataset_access.host_path` on every machine."""
    reserved: Callable[[Item[CacheTierSpec]], int] = lambda item: 0
    """Bytes of each storage level that hold no data."""
    disk_share: Fraction = Fraction(1)
    """Share of a disk that it fills at most, whatever the quota."""
    check_dataset: Callable[[Item[DatasetSpec], Program, Item[CacheTierSpec]], Iterable[Diagnostic]] = _no_problems
    """Yields the problems of a dataset in the tier, its last argument."""
    dataset: Callable[[Item[DatasetSpec], Program, Item[CacheTierSpec], Sequence[Loaded]], list[Manifest]] = _no_jobs
    """Returns the objects that load and free the versions of a dataset in a tier."""
    daemon: Callable[[Item[CacheTierSpec]], TierConfig] | None = None
    """Returns `tier.json` for the cache daemon; None if the daemon does not know the engine."""
    directories: Callable[[Item[TeamSpec], Program, Item[CacheTierSpec], str, Sequence[str]], Manifest] | None = None
    """Returns a Job that creates directories in the stores. Arguments: team, program, tier, name of the Job without
    digest, directories. None if team buckets cannot be in a tier of this engine."""


@cache
def get_engine(name: str) -> EngineRecord:
    """Return an engine by name. Raises ModuleNotFoundError."""
    found: EngineRecord = importlib.import_module(f"{ENGINES}.{name}").ENGINE
    return found


def engine_of(tier: Item[CacheTierSpec]) -> EngineRecord:
    """Return the engine of a tier."""
    return get_engine(tier.spec.engine)
