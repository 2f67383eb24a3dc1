"""Stores of the watched kinds other than pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avactl.base.object_identity import namespaced_name
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.scheduling import POOL_KEY, QUOTA_KEY, PoolFacts, TeamLeaf
from avactl.kube import logs
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.config import ConfiguredPool, TeamQuota
from avactl.scheduler.objects.watch_store import CallbackStore
from avactl.scheduler.preemption.coming_machines import ComingMachines
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets


def nodes(cache: ClusterCache) -> CallbackStore:
    """Return the store of Nodes."""
    return CallbackStore(cache.put_node, cache.drop_node, lambda: cache.tables.nodes)


def namespaces(cache: ClusterCache) -> CallbackStore:
    """Return the store of Namespaces, for selectors of pod affinity."""
    tables = cache.tables

    def put(item: dict[str, Any]) -> None:
        tables.put_namespace(item["metadata"]["name"], item["metadata"].get("labels") or {})

    return CallbackStore(put, lambda name: tables.put_namespace(name, None), lambda: tables.namespaces)


def budgets(budgets: DisruptionBudgets) -> CallbackStore:
    """Return the store of PodDisruptionBudgets."""
    return CallbackStore(budgets.put, budgets.drop, budgets.keys)


def slices(cache: ClusterCache) -> CallbackStore:
    """Return the store of ResourceSlices. A change that may renumber GPUs is rare, so the state is rebuilt."""

    def put(item: dict[str, Any]) -> None:
        cache.tables.stale |= cache.dra.put_slice(item)
        cache.tables.change_epoch += 1

    def drop(name: str) -> None:
        cache.tables.stale |= cache.dra.drop_slice(name)
        cache.tables.change_epoch += 1

    return CallbackStore(put, drop, lambda: cache.dra.devices.slices)


def device_classes(cache: ClusterCache) -> CallbackStore:
    """Return the store of DeviceClasses. A rare change affects which GPUs match requests, so the state is rebuilt."""

    def put(item: dict[str, Any]) -> None:
        cache.tables.stale |= cache.dra.put_class(item)

    def drop(name: str) -> None:
        cache.tables.stale |= cache.dra.drop_class(name)

    return CallbackStore(put, drop, lambda: cache.dra.classes)


def taint_rules(cache: ClusterCache) -> CallbackStore:
    """Return the store of DeviceTaintRules. A rare change affects which GPUs pods get, so the state is rebuilt."""

    def put(item: dict[str, Any]) -> None:
        cache.tables.stale |= cache.dra.put_taint_rule(item)

    def drop(name: str) -> None:
        cache.tables.stale |= cache.dra.drop_taint_rule(name)

    return CallbackStore(put, drop, lambda: cache.dra.devices.taint_rules)


def resource_claims(cache: ClusterCache) -> CallbackStore:
    """Return the store of ResourceClaims."""
    return CallbackStore(cache.claims.put, cache.claims.drop, cache.claims.known)


def node_claims(machines: ComingMachines) -> CallbackStore:
    """Return the store of Karpenter's NodeClaims."""
    return CallbackStore(machines.put_claim, machines.drop_claim, lambda: machines.claims)


def autoscaler_status(machines: ComingMachines) -> CallbackStore:
    """Return the store of Cluster Autoscaler's status, one ConfigMap."""
    key = f"{names.AUTOSCALER_NAMESPACE}/{names.AUTOSCALER_STATUS}"
    return CallbackStore(machines.put_status, machines.drop_status, lambda: [key] if machines.groups else [])


class ConfigMapHandler:
    """The ConfigMaps of pools and quotas. The last valid content of an invalid ConfigMap stays in use."""

    def __init__(self, cache: ClusterCache, quota: Callable[[str, TeamQuota | None], None]) -> None:
        """`quota` is told of leaves by ConfigMap, and that they are gone."""
        self._cache, self._quota = cache, quota
        self._known: dict[str, tuple[str, str]] = {}
        """Kind (topology or quota) and owner of each ConfigMap, by key."""
        self.broken: dict[str, str] = {}
        """Reasons for invalid ConfigMaps, by key."""

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a ConfigMap."""
        key = namespaced_name(item)
        kind = (item["metadata"].get("labels") or {}).get(names.CONFIG_LABEL, "")
        data = item.get("data") or {}
        try:
            if kind == names.TOPOLOGY_CONFIG:
                pool = ConfiguredPool.from_facts(load(PoolFacts, data.get(POOL_KEY)))
                self._remember_owner(key, kind, pool.name)
                self._cache.put_pool(pool)
            elif kind == names.QUOTA_CONFIG:
                leaf = TeamQuota.from_leaf(load(TeamLeaf, data.get(QUOTA_KEY)))
                self._remember_owner(key, kind, leaf.team)
                self._quota(leaf.team, leaf)
        except DocumentError as error:
            self.broken[key] = str(error)
            logs.error("invalid ConfigMap", name=key, kind=kind, error=str(error))
        else:
            self.broken.pop(key, None)

    def _remember_owner(self, key: str, kind: str, name: str) -> None:
        if self._known.get(key, (kind, name)) != (kind, name):
            self.remove(key)
        self._known[key] = (kind, name)

    def remove(self, key: str) -> None:
        """Remove a ConfigMap."""
        self.broken.pop(key, None)
        kind, name = self._known.pop(key, ("", ""))
        if kind == names.TOPOLOGY_CONFIG:
            self._cache.drop_pool(name)
        elif kind == names.QUOTA_CONFIG:
            self._quota(name, None)

    def keys(self) -> list[str]:
        """Return the keys of the known ConfigMaps."""
        return list(self._known)
