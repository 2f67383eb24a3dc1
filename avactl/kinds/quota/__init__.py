"""The Quota kind: a team's share of a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.quota.check import check, check_all
from avactl.kinds.quota.lower import lower
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, Kind
from avactl.spec.platform.quota import GpuQuota, Quota, QuotaSpec, Shape

__all__ = ["KIND", "GpuQuota", "Quota", "QuotaSpec", "Shape"]


def facts(item: Item[QuotaSpec], program: Program) -> Mapping[str, Fact]:
    """GPUs by model, whole machines, and the other limits."""
    spec = item.spec
    result: dict[str, Fact] = {"cluster": item.cluster}
    for entry in spec.gpus:
        result[entry.gpu] = f"{entry.guaranteed} + {entry.borrow} borrowed" if entry.borrow else entry.guaranteed
    for shape in spec.shapes:
        result[f"machines of {shape.gpus} {shape.gpu}"] = shape.machines
    result |= {"CPU cores": spec.cpu, "memory": spec.memory, "storage": spec.storage, "pods": spec.pods}
    return result


KIND = Kind(model=Quota, lower=lower, check=check, check_all=check_all, facts=facts, identity=lambda item: item.team)
