"""The delivery daemon: one Deployment in the system namespace, for the pipelines of a cluster."""

from __future__ import annotations

from avactl.contracts.names import DELIVERY_DAEMON
from avactl.kinds.cluster.daemons import rbac
from avactl.kinds.cluster.daemons.deployment import DaemonDeployment
from avactl.kinds.cluster.delivery import commit_place
from avactl.program.lowering.pods import TMP, build_resources
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec

COMPONENT = "delivery"
_CREDENTIALS, _CACHE = "/etc/avactl/git", "/cache"


def build_delivery_daemon(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the daemon's objects; none if it is disabled. Rights on pipelines come with each of them."""
    found = commit_place(item)
    if not item.spec.daemons.delivery or found is None:
        return []
    daemon = DaemonDeployment(item, COMPONENT, DELIVERY_DAEMON, item.spec.system_namespace)
    author = item.spec.delivery.author if item.spec.delivery is not None else None
    args = ["run", "--repo", found.repository, "--branch", found.branch, "--cache", _CACHE]
    if found.path:
        args += ["--path", found.path]
    if author is not None:
        args += ["--author", author.name, "--email", author.email]
    if not found.no_proposals:
        args += ["--forge", found.forge, "--api", found.api, "--project", found.project]
    if program.environment:
        args += ["--environment", program.environment]
    volumes: dict[str, tuple[str, Body]] = {
        "tmp": (TMP, {"emptyDir": {"sizeLimit": "1Gi"}}),
        "cache": (_CACHE, {"emptyDir": {"sizeLimit": "4Gi"}}),
    }
    if found.secret:
        args += ["--credentials", _CREDENTIALS]
        volumes["git"] = (_CREDENTIALS, {"secret": {"secretName": found.secret, "defaultMode": 0o440}})
    return [
        *daemon.deployment(args, build_resources("500m", "1Gi"), volumes),
        *daemon.role([*rbac.leader_rules(daemon.name), rbac.config_rule()]),
    ]


def delivery_account(item: Item[ClusterSpec]) -> str:
    """Return the user name of the daemon's service account; "" if it is disabled."""
    on = item.spec.daemons.delivery and commit_place(item) is not None
    return f"system:serviceaccount:{item.spec.system_namespace}:{DELIVERY_DAEMON}" if on else ""
