"""Nodes with faults: what follows for new pods, and for those that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from avactl.contracts import names
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.node_info import NodeInfo

_EFFECTS = {
    "avoid": "its pods stay",
    "evict": "pods that are certain to have such a GPU are evicted",
    "drain": "its pods are evicted",
}
"""Effects on pods that run, by `onFault` of the pool."""


def nodes_with_faults(tables: ClusterTables) -> list[NodeInfo]:
    """Return the nodes that report faults."""
    return [info for info in tables.nodes.values() if info.faults]


def may_evict(pool: ConfiguredPool, info: NodeInfo) -> bool:
    """Return True if pods may have to leave a node because of its faults."""
    if pool.on_fault == "evict":
        return any(fault.evict for fault in info.faults)
    return pool.on_fault == "drain" and bool(info.faults)


def suspended_pools(tables: ClusterTables) -> Mapping[str, str]:
    """Return the pools in which nothing is evicted because most of their machines report faults, and why.

    That is rather a fault of a monitor, a driver or a power supply, and evicted pods would have no place to go.
    """
    faulty: Counter[str] = Counter()
    for info in nodes_with_faults(tables):
        pool = tables.pool_of(info)
        if pool is not None and may_evict(pool, info):
            faulty[pool.name] += 1
    if not faulty:
        return {}
    total = Counter(info.labels.get(names.POOL_LABEL, "") for info in tables.nodes.values())
    return {
        name: f"{count} of {total[name]} machines of pool {name} have faults, so no pod is evicted from them"
        for name, count in faulty.items()
        if count > max(1, total[name] // 2)
    }


def describe_faulty_nodes(tables: ClusterTables) -> dict[str, str]:
    """Return the nodes that report faults, with these, and what follows for pods."""
    suspended = suspended_pools(tables)
    return {info.name: _describe(tables, info, suspended) for info in nodes_with_faults(tables)}


def _describe(tables: ClusterTables, info: NodeInfo, suspended: Mapping[str, str]) -> str:
    pool = tables.pool_of(info)
    new = "no pod gets these GPUs"
    if info.closed is not None:
        new = "no pod starts on it"
    elif info.unusable_gpus is not None:
        new = "no pod gets its GPUs"
    policy = pool.on_fault if pool is not None else "avoid"
    running = suspended.get(pool.name) if pool is not None else None
    return f"{info.describe_faults()}; {new}; {running or _EFFECTS[policy]}"
