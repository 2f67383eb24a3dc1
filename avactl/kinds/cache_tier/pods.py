"""Pods and Jobs of cache tiers with any engine: common fields, and where they run."""

from __future__ import annotations

from typing import Any

from avactl.contracts.names import CACHE_NAMESPACE, POOL_LABEL, SYSTEM_PRIORITY
from avactl.contracts.pod_annotations import CONFIGURATION
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import pod_security
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.node_pool import NodePoolSpec


def build_pod(item: Item[CacheTierSpec], program: Program, **fields: Any) -> Body:
    """Build a pod spec with the fields shared by a tier's pods. None of them talks to the Kubernetes API."""
    cluster = program.cluster_spec(item.spec.cluster)
    return k8s.drop_none(
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        priorityClassName=SYSTEM_PRIORITY,
        securityContext=pod_security(),
        imagePullSecrets=[{"name": name} for name in cluster.pull_secrets] or None,
        **fields,
    )


def build_template(item: Item, component: str, configuration: str, spec: Body) -> Body:
    """Build a pod template; pods restart when the configuration changes."""
    return {
        "metadata": {
            "labels": k8s.object_labels(item, component),
            "annotations": {CONFIGURATION.name: configuration},
        },
        "spec": spec,
    }


def build_job(item: Item, cluster: str, prefix: str, component: str, template: Body) -> Manifest:
    """Build a Job that runs once for each content of its template.

    A Job's template is immutable, so its name carries a digest: a change creates a new Job, and the old one is
    pruned. It has no TTL: a deleted Job would count as drift and run again.
    """
    spec: Body = {"backoffLimit": 10, "template": template}
    return k8s.build_manifest(
        item,
        cluster,
        "batch/v1",
        "Job",
        f"{prefix}-{k8s.short_digest(spec)}",
        namespace=CACHE_NAMESPACE,
        component=component,
        spec=spec,
    )


# -- where pods run ------------------------------------------------------------------------------------------------


def pool_tolerations(some: list[Item[NodePoolSpec]]) -> list[Body] | None:
    seen: dict[tuple[str, str, str], Body] = {}
    for taint in (taint for pool in some for taint in pool.spec.all_taints):
        seen[taint.key, taint.value, taint.effect] = k8s.drop_none(
            key=taint.key,
            operator="Equal" if taint.value else "Exists",
            value=taint.value or None,
            effect=taint.effect,
        )
    return list(seen.values()) or None


def spare_tolerations(item: Item[CacheTierSpec], program: Program) -> list[Body] | None:
    """Tolerations of pods without a pool: they avoid tainted machines unless all machines are tainted."""
    all_pools = program.pools(item.spec.cluster)
    keeping_off = [any(taint.effect != "PreferNoSchedule" for taint in pool.spec.all_taints) for pool in all_pools]
    return pool_tolerations(all_pools) if all(keeping_off) else None


def on_pools(item: Item[CacheTierSpec], program: Program) -> Body | None:
    """Node affinity of workers to their pools."""
    wanted = item.spec.workers.pools
    if not wanted and not program.pools(item.spec.cluster):
        return None
    expression: Body = {"key": POOL_LABEL, "operator": "Exists"}
    if wanted:
        expression = {"key": POOL_LABEL, "operator": "In", "values": sorted(set(wanted))}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }


def apart_affinity(item: Item[CacheTierSpec], component: str) -> Body:
    """Pod anti-affinity: one pod of a component per machine."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": k8s.component_selector(item, component)},
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
