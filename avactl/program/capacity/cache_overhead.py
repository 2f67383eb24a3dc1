"""CPU and memory that cache tiers reserve on each node."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.program.cache_engines import EngineNeeds, engine_of
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.node_pool import NodePoolSpec


class Taken(NamedTuple):
    """CPU cores and bytes of memory reserved on one machine, and the tiers that reserve them."""

    cpu: Fraction
    memory: Fraction
    by: tuple[str, ...]
    """Names of the cache tiers."""


def _of_tier(item: Item[CacheTierSpec], program: Program) -> tuple[str, tuple[str, ...], str, int, str, int]:
    """Cluster; pools, CPU and memory of workers that run on every machine; CPU and memory of FUSE."""
    workers, engine = item.spec.workers, engine_of(item)
    worker = engine.worker(item) if workers.replicas is None else EngineNeeds()
    fuse = engine.fuse(item)
    return item.spec.cluster, tuple(workers.pools), worker.cpu, worker.memory, fuse.cpu, fuse.memory


def reserved_by_tiers(program: Program, pool: Item[NodePoolSpec]) -> Taken:
    """Return the sum of the requests of cache-tier DaemonSets on each machine of a pool.

    A tier with a fixed number of workers occupies only some machines. Those workers are not counted, so a pod that
    does not fit next to the rest never fits.
    """
    cpu, memory, by = Fraction(0), Fraction(0), []
    for tier in program.tiers():
        cluster, pools, worker_cpu, worker_bytes, fuse_cpu, fuse_bytes = program.derive(tier, _of_tier)
        if cluster != pool.spec.cluster:
            continue
        here = not pools or pool.name in pools
        here = here and worker_bytes <= parse_quantity(program.machine(pool).memory)  # else the tier is refused
        cores = Fraction(fuse_cpu) + (Fraction(worker_cpu) if here else 0)
        size = fuse_bytes + (worker_bytes if here else 0)
        if cores or size:
            cpu, memory = cpu + cores, memory + size
            by.append(tier.spec_name)
    return Taken(cpu, memory, tuple(by))
