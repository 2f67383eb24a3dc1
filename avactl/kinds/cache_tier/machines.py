"""Machines that a tier's workers run on, and its directories there."""

from __future__ import annotations

from typing import NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.program.program import Item, Program, pool_size
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.node_pool import NodePoolSpec


def tier_pools(item: Item[CacheTierSpec], program: Program) -> list[Item[NodePoolSpec]]:
    """Return the pools that the workers run on: the named ones, else all of the cluster."""
    wanted = item.spec.workers.pools
    return [pool for pool in program.pools(item.spec.cluster) if not wanted or pool.name in wanted]


def worker_count(item: Item[CacheTierSpec], program: Program) -> int:
    """Return the maximum number of workers; 0 if the specs do not say."""
    replicas = item.spec.workers.replicas
    return replicas if replicas is not None else sum(pool_size(pool) for pool in tier_pools(item, program))


class LevelDirectory(NamedTuple):
    """A directory on the machine, for a storage level or its part on one disk."""

    path: str
    quota: int
    """Bytes."""
    place: tuple[str | int, ...]
    """Location in the spec."""


def level_directories(item: Item[CacheTierSpec], index: int, in_memory: str = "") -> list[LevelDirectory]:
    """Return the directories of a storage level. Several tiers may share a disk.

    `in_memory` is that of a MEM level; without it, such a level has none.
    """
    level = item.spec.workers.tiers[index]
    where: tuple[str | int, ...] = ("spec", "workers", "tiers", index)
    found: list[tuple[str, tuple[str | int, ...]]]
    if level.medium == "MEM":
        found = [(in_memory, (*where, "medium"))] if in_memory else []
    elif level.paths:
        found = [(path, (*where, "paths", number)) for number, path in enumerate(level.paths)]
    elif level.path is not None:
        found = [(level.path, (*where, "path"))]
    else:
        found = [(f"/mnt/{level.medium.lower()}", (*where, "medium"))]
    quota = int(parse_quantity(level.quota)) // max(1, len(found))
    return [LevelDirectory(f"{path.rstrip('/')}/{item.name}", quota, place) for path, place in found]
