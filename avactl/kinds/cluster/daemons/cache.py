"""The cache daemon: one Deployment in the namespace of the cache tiers, for all of a cluster's tiers."""

from __future__ import annotations

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.kinds.cluster.daemons import dashboard, rbac
from avactl.kinds.cluster.daemons.deployment import DaemonDeployment, metrics_only
from avactl.program.dataset_access import may_hold_unpersisted
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import TMP, build_resources
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec

NAME = "avactl-cache"
COMPONENT = "cache"


def runs_cache_daemon(item: Item[ClusterSpec], program: Program) -> bool:
    """Return True if a cluster runs the daemon: it is enabled, and there is a tier."""
    return bool(item.spec.daemons.cache and program.tiers(item.name))


def build_cache_daemon(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the daemon's objects; none if it is disabled or the cluster has no tier."""
    tiers = program.tiers(item.name)
    if not runs_cache_daemon(item, program):
        return []
    daemon = DaemonDeployment(item, COMPONENT, NAME, CACHE_NAMESPACE)
    volumes: dict[str, tuple[str, Body]] = {"tmp": (TMP, {"emptyDir": {"sizeLimit": "1Gi"}})}
    return [
        *daemon.deployment(["run", "--namespace", CACHE_NAMESPACE], build_resources("1", "1Gi"), volumes),
        *daemon.cluster_role(rbac.cache_cluster_rules()),
        *daemon.role([*rbac.leader_rules(NAME), *rbac.cache_rules(any(may_hold_unpersisted(tier) for tier in tiers))]),
        dashboard.config_map(item),
        metrics_only(item, CACHE_NAMESPACE, k8s.component_selector(item, COMPONENT)),
    ]
