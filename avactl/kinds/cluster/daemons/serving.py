"""The serving daemon: one Deployment in the system namespace, for the rollouts of all services of a cluster."""

from __future__ import annotations

from avactl.contracts.names import SERVING_DAEMON
from avactl.kinds.cluster.daemons import rbac
from avactl.kinds.cluster.daemons.deployment import DaemonDeployment
from avactl.program.lowering.pods import TMP, build_resources
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec

COMPONENT = "serving"


def build_serving_daemon(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the daemon's objects; none if it is disabled."""
    if not item.spec.daemons.serving:
        return []
    daemon = DaemonDeployment(item, COMPONENT, SERVING_DAEMON, item.spec.system_namespace)
    monitoring = item.spec.monitoring
    metrics = ["--prometheus", monitoring.prometheus] if monitoring is not None and monitoring.prometheus else []
    groups = item.spec.leader_worker_set is not None
    pools = item.spec.routes_to_pools
    more = [*(["--groups"] if groups else []), *(["--pools"] if pools else [])]
    volumes: dict[str, tuple[str, Body]] = {"tmp": (TMP, {"emptyDir": {"sizeLimit": "64Mi"}})}
    return [
        *daemon.deployment(["run", *metrics, *more], build_resources("200m", "512Mi"), volumes),
        *daemon.cluster_role(rbac.serving_cluster_rules(groups, pools)),
        *daemon.role(rbac.leader_rules(daemon.name)),
    ]


def serving_account(item: Item[ClusterSpec]) -> str:
    """Return the user name of the daemon's service account; "" if it is disabled."""
    system = item.spec.system_namespace
    return f"system:serviceaccount:{system}:{SERVING_DAEMON}" if item.spec.daemons.serving else ""
