"""The cache daemon: one Deployment in the namespace of the cache tiers, for all of a cluster's tiers."""

from __future__ import annotations

from avactl.kinds.cluster.daemons import rbac
from avactl.kinds.cluster.daemons.deployment import Daemon, metrics_only
from avactl.kinds.dataset_access import CACHE_NAMESPACE, store_secrets, unpersisted, worker_budget
from avactl.kinds.lowering import k8s
from avactl.kinds.lowering.pods import TMP, resources
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program

NAME = "avactl-cache"
COMPONENT = "cache"
STORES = "/etc/avactl/stores"
"""Directory with one directory for each Secret of an under-store, in the daemon's pod."""


def objects(item: Item, program: Program) -> list[Manifest]:
    """Return the daemon's objects; none if it is disabled or the cluster has no tier."""
    tiers = program.tiers(item.name)
    if not item.spec.daemons.cache or not tiers:
        return []
    daemon = Daemon(item, COMPONENT, NAME, CACHE_NAMESPACE)
    volumes: dict[str, tuple[str, Body]] = {"tmp": (TMP, {"emptyDir": {"sizeLimit": "1Gi"}})}
    for index, secret in enumerate(sorted({name for tier in tiers for name in store_secrets(tier)})):
        # The kubelet keeps the files up to date. A tier without its Secret must not stop the daemon of all others.
        source = {"secret": {"secretName": secret, "optional": True, "defaultMode": 0o440}}
        volumes[f"store-{index}"] = (f"{STORES}/{secret}", source)
    budgets = sorted(worker_budget(tier) for tier in tiers if unpersisted(tier))
    return [
        *daemon.deployment(["--namespace", CACHE_NAMESPACE], resources("1", "1Gi"), volumes),
        *daemon.cluster_role(rbac.cache_cluster_rules()),
        *daemon.role([*rbac.leader_rules(NAME), *rbac.cache_rules(budgets)]),
        metrics_only(item, CACHE_NAMESPACE, k8s.selector(item, COMPONENT)),
    ]
