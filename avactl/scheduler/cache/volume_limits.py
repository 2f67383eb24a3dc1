"""Limits on the number of CSI volumes by node and driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from avactl.hardware.placement.masks import Mask
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.objects.pod_info import PodInfo

Handle = tuple[str, str]
"""CSI driver and volume."""


class VolumeLimits(ChangeListener):
    """Counts of distinct volumes of pods and attachments by driver, as in kube-scheduler's plugin NodeVolumeLimits."""

    def __init__(
        self,
        tables: ClusterTables,
        of_claim: Callable[[str], Handle | None],
        of_volume: Callable[[str], Handle | None],
    ) -> None:
        """The callbacks find a volume by its claim's `namespace/name`, or by its own name."""
        self._tables, self._handle_of_claim, self._handle_of_volume = tables, of_claim, of_volume
        tables.subscribe(self)
        self._limits: dict[str, dict[str, int]] = {}
        """Largest number of volumes by driver, then by node."""
        self._drivers: dict[str, tuple[str, ...]] = {}
        """Drivers with a limit, by node."""
        self._attachments: dict[str, tuple[str, str]] = {}
        """Node and volume of each attachment."""
        self._by_node: dict[str, dict[str, str]] = {}
        """Volumes that are attached or being detached by node, then by attachment."""
        self._attached_to: dict[str, dict[str, str]] = {}
        """Nodes by volume, then by attachment."""
        self._here: dict[str, dict[str, set[Handle]]] = {}
        """Volumes by node and driver, at the last count."""
        self._left: dict[str, dict[str, int]] = {}
        """Volumes that a node can still attach by driver, then by node, at the last count."""
        self._changed: set[str] = set()
        """Nodes that changed since the last count."""

    def put_node(self, item: Mapping[str, Any]) -> None:
        """Add or change a CSINode."""
        name = item["metadata"]["name"]
        limits = {
            driver["name"]: count
            for driver in (item.get("spec") or {}).get("drivers") or ()
            if (count := (driver.get("allocatable") or {}).get("count")) is not None
        }
        if {driver: self._limits[driver][name] for driver in self._drivers.get(name, ())} != limits:
            self.drop_node(name)
            self._drivers[name] = tuple(limits)
            for driver, count in limits.items():
                self._limits.setdefault(driver, {})[name] = count
            self._changed.add(name)
            self._tables.change_epoch += 1

    def drop_node(self, name: str) -> None:
        """Remove a CSINode and its limits."""
        for driver in self._drivers.pop(name, ()):
            del self._limits[driver][name]
            self._left.get(driver, {}).pop(name, None)
        self._here.pop(name, None)
        self._changed.discard(name)

    def nodes(self) -> list[str]:
        """Return the names of all CSINodes."""
        return list(self._drivers)

    def put_attachment(self, item: Mapping[str, Any]) -> None:
        """Add or change a VolumeAttachment."""
        spec, name = item["spec"], item["metadata"]["name"]
        volume = (spec.get("source") or {}).get("persistentVolumeName")
        if volume and name not in self._attachments:
            self._attachments[name] = (spec["nodeName"], volume)
            self._by_node.setdefault(spec["nodeName"], {})[name] = volume
            self._attached_to.setdefault(volume, {})[name] = spec["nodeName"]
            self._node_changed(spec["nodeName"])

    def drop_attachment(self, name: str) -> None:
        """Remove a VolumeAttachment."""
        known = self._attachments.pop(name, None)
        if known is not None:
            node, volume = known
            for index, key in ((self._by_node, node), (self._attached_to, volume)):
                del index[key][name]
                if not index[key]:
                    del index[key]
            self._node_changed(node)
            self._tables.change_epoch += 1

    def attachments(self) -> list[str]:
        """Return the names of all VolumeAttachments."""
        return list(self._attachments)

    def volume_claim_changed(self, key: str) -> None:
        """Recount the nodes of a PersistentVolumeClaim whose volume may have changed."""
        for node in self._tables.volume_users.get(key, {}).values():
            self._node_changed(node)

    def volume_changed(self, name: str) -> None:
        """Recount the nodes to which a PersistentVolume is attached."""
        for node in self._attached_to.get(name, {}).values():
            self._node_changed(node)

    def class_changed(self) -> None:
        """Recount all nodes: the volumes of claims that are to be provisioned may have another driver."""
        self._changed.update(self._drivers)

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Recount a node's volumes."""
        if pod.volumes:
            self._node_changed(node)

    pod_removed = pod_added

    def users(self, key: str) -> Iterable[str]:
        """Return the UIDs of pods on nodes that use a claim."""
        return self._tables.volume_users.get(key, {})

    def full(self, pod: PodInfo) -> Mask | None:
        """Return the nodes that cannot attach a pod's volumes; None if all can."""
        wanted: dict[str, set[Handle]] = {}
        for name in pod.volumes:
            handle = self._handle_of_claim(f"{pod.namespace}/{name}")
            if handle is not None and self._limits.get(handle[0]):
                wanted.setdefault(handle[0], set()).add(handle)
        if not wanted:
            return None
        self._count_volumes()
        nodes = [
            node
            for driver, handles in wanted.items()
            for node, left in self._left[driver].items()
            if left < len(handles) and self._exceeds(node, driver, handles)
        ]
        return self._tables.mask(nodes) if nodes else None

    def _exceeds(self, node: str, driver: str, more: set[Handle]) -> bool:
        here = self._here[node].get(driver, set())
        # A pod that brings nothing new fits also where others have gone over the limit.
        return not more <= here and len(here | more) > self._limits[driver][node]

    def _node_changed(self, node: str) -> None:
        if node in self._drivers:
            self._changed.add(node)

    def _count_volumes(self) -> None:
        for node in self._changed:
            pods = self._tables.pods_by_node.get(node, {}).values()
            claims = (f"{pod.namespace}/{name}" for pod in pods for name in pod.volumes)
            here: dict[str, set[Handle]] = {}
            for handle in (
                *map(self._handle_of_claim, claims),
                *map(self._handle_of_volume, self._by_node.get(node, {}).values()),
            ):
                if handle is not None:
                    here.setdefault(handle[0], set()).add(handle)
            self._here[node] = here
            for driver in self._drivers[node]:
                self._left.setdefault(driver, {})[node] = self._limits[driver][node] - len(here.get(driver, ()))
        self._changed.clear()
