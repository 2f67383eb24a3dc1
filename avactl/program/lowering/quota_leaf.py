"""Leaves of the scheduler's quota tree: ConfigMaps with the GPUs that a team is guaranteed and may borrow."""

from __future__ import annotations

from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.scheduling import QUOTA_KEY, GpuLimit, TeamLeaf
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program, pool_size


def build_leaf(item: Item, program: Program, cluster: str, document: TeamLeaf) -> Manifest:
    """Return a team's leaf. GPUs count across all of its namespaces."""
    return k8s.config_map(
        item,
        cluster,
        f"avactl-quota-{document.team}",
        program.cluster_spec(cluster).system_namespace,
        {QUOTA_KEY: dump(document, indent=True)},
        extra_labels={names.CONFIG_LABEL: names.QUOTA_CONFIG},
    )


def build_borrower(item: Item, program: Program, cluster: str, namespaces: list[str]) -> list[Manifest]:
    """Return the leaf of a team without a Quota beside teams with one: guaranteed nothing, it may borrow every GPU.

    Without a leaf its pods would never give way to the guarantees of the others.
    """
    quotas = [quota for quota in program.quotas() if quota.cluster == cluster]
    if not quotas or any(quota.team == item.name for quota in quotas):
        return []
    gpus = []
    for model in program.gpu_models(cluster):
        pools = program.candidate_pools(cluster, model, None)
        total = sum(pool_size(pool) * program.machine(pool).gpu_count for pool in pools)
        gpus.append(GpuLimit(gpu=model, guaranteed=0, borrow=total, weight=1))
    document = TeamLeaf(version=1, team=item.name, namespaces=tuple(namespaces), gpus=tuple(gpus), shapes=())
    return [build_leaf(item, program, cluster, document)]
