"""The NodePool kind: machines of one type in a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.node_pool.check import check, check_all
from avactl.kinds.node_pool.lower import lower
from avactl.program.program import Item, Program, pool_size
from avactl.program.registry import Fact, Kind
from avactl.spec.platform.node_pool import Autoscaling, NodePool, NodePoolSpec, Taint

__all__ = ["KIND", "Autoscaling", "NodePool", "NodePoolSpec", "Taint"]


def facts(item: Item[NodePoolSpec], program: Program) -> Mapping[str, Fact]:
    """Machines and GPUs of the pool, and how pods get the GPUs."""
    spec, gpus = item.spec, program.machine(item).gpus
    scaling = spec.autoscaling
    least = pool_size(item) if scaling is None else scaling.min
    most = pool_size(item)
    return {
        "machines": most if least == most else f"{least} to {most}",
        "machine type": spec.machine_type,
        "GPUs": None
        if gpus is None
        else f"{most * gpus.count} {gpus.model}"
        if least == most
        else f"{least * gpus.count} to {most * gpus.count} {gpus.model}",
        "allocation": None if gpus is None else spec.allocation,
        "capacity": spec.capacity if spec.is_spot else None,
        "price": spec.price,
    }


KIND = Kind(model=NodePool, lower=lower, check=check, check_all=check_all, facts=facts)
