"""Machines that a tier's workers run on, and its directories there."""

from __future__ import annotations

from avactl.program.program import Item, Program, pool_size


def pools(item: Item, program: Program) -> list[Item]:
    """Return the pools that the workers run on: the named ones, else all of the cluster."""
    wanted = item.spec.workers.pools
    return [pool for pool in program.pools(item.spec.cluster) if not wanted or pool.name in wanted]


def worker_count(item: Item, program: Program) -> int:
    """Return the maximum number of workers; 0 if the specs do not say."""
    replicas: int | None = item.spec.workers.replicas
    return replicas if replicas is not None else sum(pool_size(pool) for pool in pools(item, program))


def machine_dir(item: Item, medium: str, path: str | None) -> str:
    """Directory on the machine for a tier's storage medium. Several tiers may share a disk."""
    return f"{(path or f'/mnt/{medium.lower()}').rstrip('/')}/{item.name}"
