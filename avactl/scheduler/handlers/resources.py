"""Stores of the watched kinds other than pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.contracts import names
from avactl.kube import logs
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.volume_binding import VolumeBinding
from avactl.scheduler.objects.config import Pool, TeamQuota
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets


class CallbackStore:
    """A watch store made of three functions."""

    def __init__(
        self,
        put: Callable[[dict[str, Any]], None],
        remove: Callable[[str], None],
        keys: Callable[[], Iterable[str]],
    ) -> None:
        self._put, self._remove, self._keys = put, remove, keys

    def put(self, item: dict[str, Any]) -> None:
        """Add or update an object."""
        self._put(item)

    def remove(self, key: str) -> None:
        """Remove an object."""
        self._remove(key)

    def keys(self) -> list[str]:
        """Return the keys of the known objects."""
        return list(self._keys())


def nodes(cache: ClusterCache) -> CallbackStore:
    """Return the store of Nodes."""
    return CallbackStore(cache.put_node, cache.drop_node, lambda: cache.tables.nodes)


def namespaces(cache: ClusterCache) -> CallbackStore:
    """Return the store of Namespaces, for selectors of pod affinity."""
    tables = cache.tables

    def put(item: dict[str, Any]) -> None:
        tables.put_namespace(item["metadata"]["name"], item["metadata"].get("labels") or {})

    return CallbackStore(put, lambda name: tables.put_namespace(name, None), lambda: tables.namespaces)


def claims(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of PersistentVolumeClaims."""
    return CallbackStore(volumes.put_claim, volumes.drop_claim, lambda: volumes.keys("claims"))


def persistent_volumes(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of PersistentVolumes."""
    return CallbackStore(volumes.put_volume, volumes.drop_volume, lambda: volumes.keys("volumes"))


def storage_classes(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of StorageClasses."""
    return CallbackStore(volumes.put_class, volumes.drop_class, lambda: volumes.keys("classes"))


def budgets(budgets: DisruptionBudgets) -> CallbackStore:
    """Return the store of PodDisruptionBudgets."""
    return CallbackStore(budgets.put, budgets.drop, budgets.keys)


def csi_nodes(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of CSINodes, for volume limits."""
    attached = volumes.attached
    return CallbackStore(attached.put_node, attached.drop_node, attached.nodes)


def volume_attachments(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of VolumeAttachments: volumes count until they are detached."""
    attached = volumes.attached
    return CallbackStore(attached.put_attachment, attached.drop_attachment, attached.attachments)


def csi_drivers(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of CSIDrivers, for whether they report storage capacity."""
    return CallbackStore(volumes.put_driver, volumes.drop_driver, lambda: volumes.keys("drivers"))


def storage_capacities(volumes: VolumeBinding) -> CallbackStore:
    """Return the store of CSIStorageCapacities."""
    return CallbackStore(volumes.put_room, volumes.drop_room, lambda: volumes.keys("rooms"))


def slices(cache: ClusterCache) -> CallbackStore:
    """Return the store of ResourceSlices. A rare change renumbers GPUs, so the state is rebuilt."""

    def put(item: dict[str, Any]) -> None:
        cache.tables.stale |= cache.dra.put_slice(item)

    def drop(name: str) -> None:
        cache.tables.stale |= cache.dra.drop_slice(name)

    return CallbackStore(put, drop, lambda: cache.dra.devices.slices)


def device_classes(cache: ClusterCache) -> CallbackStore:
    """Return the store of DeviceClasses. A rare change affects which GPUs match requests, so the state is rebuilt."""

    def put(item: dict[str, Any]) -> None:
        cache.tables.stale |= cache.dra.put_class(item)

    def drop(name: str) -> None:
        cache.tables.stale |= cache.dra.drop_class(name)

    return CallbackStore(put, drop, lambda: cache.dra.classes)


def resource_claims(cache: ClusterCache) -> CallbackStore:
    """Return the store of ResourceClaims."""
    return CallbackStore(cache.claims.put, cache.claims.drop, lambda: cache.dra.claims)


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
            if kind == "topology":
                pool = Pool.parse(orjson.loads(data.get("pool.json") or ""))
                self._is(key, kind, pool.name)
                self._cache.put_pool(pool)
            elif kind == "quota":
                leaf = TeamQuota.parse(orjson.loads(data.get("quota.json") or ""))
                self._is(key, kind, leaf.team)
                self._quota(leaf.team, leaf)
        except ValueError as error:
            self.broken[key] = str(error)
            logs.error("invalid ConfigMap", name=key, kind=kind, error=str(error))
        else:
            self.broken.pop(key, None)

    def _is(self, key: str, kind: str, name: str) -> None:
        if self._known.get(key, (kind, name)) != (kind, name):
            self.remove(key)
        self._known[key] = (kind, name)

    def remove(self, key: str) -> None:
        """Remove a ConfigMap."""
        self.broken.pop(key, None)
        kind, name = self._known.pop(key, ("", ""))
        if kind == "topology":
            self._cache.drop_pool(name)
        elif kind == "quota":
            self._quota(name, None)

    def keys(self) -> list[str]:
        """Return the keys of the known ConfigMaps."""
        return list(self._known)
