"""Machines that a tier's workers run on, and its directories there."""

from __future__ import annotations

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


def machine_dir(item: Item[CacheTierSpec], medium: str, path: str | None) -> str:
    """Directory on the machine for a tier's storage medium. Several tiers may share a disk."""
    return f"{(path or f'/mnt/{medium.lower()}').rstrip('/')}/{item.name}"
