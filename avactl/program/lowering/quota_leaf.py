"""Leaves of the scheduler's quota tree: ConfigMaps with the GPUs that a team is guaranteed and may borrow."""

from __future__ import annotations

from typing import Any

from avactl.contracts import names
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program, pool_size


def leaf(
    item: Item, program: Program, cluster: str, team: str, namespaces: list[str], gpus: list[dict[str, Any]],
    **more: Any,
) -> Manifest:  # fmt: skip
    """Return a team's leaf as JSON. GPUs count across all of its namespaces."""
    data = {"version": 1, "team": team, "namespaces": namespaces, "gpus": gpus, "shapes": [], **more}
    return k8s.config_map(
        item, cluster, f"avactl-quota-{team}", program.cluster_spec(cluster).system_namespace,
        {"quota.json": k8s.json_text(data)}, extra_labels={names.CONFIG_LABEL: "quota"},
    )  # fmt: skip


def borrower(item: Item, program: Program, cluster: str, namespaces: list[str]) -> list[Manifest]:
    """Return the leaf of a team without a Quota beside teams with one: guaranteed nothing, it may borrow every GPU.

    Without a leaf its pods would never give way to the guarantees of the others.
    """
    quotas = [quota for quota in program.quotas() if quota.cluster == cluster]
    if not quotas or any(quota.team == item.name for quota in quotas):
        return []
    gpus = []
    for model in program.gpu_models(cluster):
        pools = program.candidate_pools(cluster, model, None)
        total = sum(pool_size(pool) * program.machine(pool).gpus.count for pool in pools)
        gpus.append({"gpu": model, "guaranteed": 0, "borrow": total, "weight": 1})
    return [leaf(item, program, cluster, item.name, namespaces, gpus)]
