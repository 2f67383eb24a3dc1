"""Nodes that a pod's volumes allow: access to existing or provisionable volumes, and volume limits.

Equivalent to the filters of kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions (ReadWriteOncePod)
and NodeVolumeLimits (CSI).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.cache.volume_limits import VolumeLimits
from avactl.scheduler.objects.limits import selector_excess
from avactl.scheduler.objects.node_rules import Labels, NotYetError, RuleError, node_selector, selector
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.storage_objects import (
    LATER,
    NO_PROVISIONER,
    ZONES,
    LiveStorageClass,
    LiveVolume,
    StorageCapacity,
    VolumeClaim,
)

_IMMEDIATE = LiveStorageClass("Immediate", "", b"")


class VolumeBinding:
    """PersistentVolumeClaims, PersistentVolumes, StorageClasses, and the storage capacity that CSI drivers report."""

    def __init__(self, tables: ClusterTables, owned: bool = True) -> None:
        """`owned`: claims of ephemeral volumes have an owner reference."""
        self._tables, self._owned = tables, owned
        self._claims: dict[str, VolumeClaim] = {}
        self._asking: dict[str, set[str]] = {}
        """Claims by the volume that they ask for or have."""
        self._volumes: dict[str, LiveVolume] = {}
        self._classes: dict[str, LiveStorageClass] = {}
        self._capacities: dict[str, StorageCapacity] = {}
        self._capacity_drivers: set[str] = set()
        """CSI drivers that report their capacity."""
        self._by_class: dict[str, dict[str, LiveVolume]] = {}
        """Available volumes by class."""
        self._assigned: dict[str, str] = {}
        """UID of the claim to which each of these volumes is being bound."""
        self._masks: dict[bytes, tuple[int, Mask]] = {}
        self.attached = VolumeLimits(tables, self._handle_of_claim, self._handle_of_volume)

    # -- objects ----------------------------------------------------------------------------------------------

    def put_claim(self, item: Mapping[str, Any]) -> None:
        """Add or change a PersistentVolumeClaim."""
        claim = VolumeClaim.parse(item)
        if reason := selector_excess(claim.selector):
            claim = claim._replace(selector=None, gone=f"is invalid: {reason}")
        if self._claims.get(claim.key) != claim:
            self.drop_claim(claim.key)
            self._claims[claim.key] = claim
            if claim.asked:
                self._asking.setdefault(claim.asked, set()).add(claim.key)
            self._tables.change_epoch += 1
            self._tables.waits.occurred(f"volume claim {claim.key}")

    def put_volume(self, item: Mapping[str, Any]) -> None:
        """Add or change a PersistentVolume."""
        volume = LiveVolume.parse(item)
        before = self._volumes.get(volume.name)
        if before == volume:
            return
        self.drop_volume(volume.name)
        self._volumes[volume.name] = volume
        if volume.available or (volume.owner and not volume.owner[2]):
            self._by_class.setdefault(volume.class_name, {})[volume.name] = volume
        if before is None or before._replace(owner=volume.owner, version=volume.version) != volume:
            self._tables.change_epoch += 1
        self._tables.waits.occurred(f"volume {volume.name}")

    def put_class(self, item: Mapping[str, Any]) -> None:
        """Add or change a StorageClass."""
        name, found = item["metadata"]["name"], LiveStorageClass.parse(item)
        if self._classes.get(name) != found:
            self._classes[name] = found
            self.attached.class_changed()
            self._tables.change_epoch += 1
            self._tables.waits.occurred(f"storage class {name}")

    def put_capacity(self, item: Mapping[str, Any]) -> None:
        """Add or change a CSIStorageCapacity."""
        room, key = StorageCapacity.parse(item), f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        before = self._capacities.get(key)
        self._capacities[key] = room
        if before is None or room.size > before.size or room.nodes != before.nodes:
            self._tables.change_epoch += 1

    def put_driver(self, item: Mapping[str, Any]) -> None:
        """Add or change a CSIDriver."""
        name = item["metadata"]["name"]
        if (item.get("spec") or {}).get("storageCapacity"):
            self._capacity_drivers.add(name)
        elif name in self._capacity_drivers:
            self.drop_driver(name)

    def drop_claim(self, key: str) -> None:
        """Remove a PersistentVolumeClaim."""
        known = self._claims.pop(key, None)
        if known is not None and known.asked:
            self._asking[known.asked].discard(key)
            if not self._asking[known.asked]:
                del self._asking[known.asked]
        self.attached.volume_claim_changed(key)

    def drop_volume(self, key: str) -> None:
        """Remove a PersistentVolume."""
        known = self._volumes.pop(key, None)
        if known is not None:
            self._by_class.get(known.class_name, {}).pop(key, None)
        self.attached.volume_changed(key)
        for claim in self._asking.get(key, ()):
            self.attached.volume_claim_changed(claim)

    def drop_class(self, key: str) -> None:
        """Remove a StorageClass."""
        self._classes.pop(key, None)
        self.attached.class_changed()

    def drop_capacity(self, key: str) -> None:
        """Remove a CSIStorageCapacity."""
        self._capacities.pop(key, None)

    def drop_driver(self, key: str) -> None:
        """Remove a CSIDriver, or one that no longer reports its capacity."""
        self._capacity_drivers.discard(key)
        self._tables.change_epoch += 1

    def keys(self, kind: str) -> list[str]:
        """Return the known keys of a kind: `claims`, `volumes`, `classes`, `capacities` or `drivers`."""
        known: dict[str, Iterable[str]] = {
            "claims": self._claims,
            "volumes": self._volumes,
            "classes": self._classes,
            "capacities": self._capacities,
            "drivers": self._capacity_drivers,
        }
        return list(known[kind])

    def _handle_of_volume(self, name: str) -> tuple[str, str] | None:
        volume = self._volumes.get(name)
        return (volume.driver, volume.handle) if volume is not None and volume.driver else None

    def _handle_of_claim(self, key: str) -> tuple[str, str] | None:
        """Return the CSI driver and volume of a claim, also of one to be provisioned; None for others."""
        claim = self._claims.get(key)
        if claim is None:
            return None
        if claim.asked in self._volumes:
            return self._handle_of_volume(claim.asked)
        known = self._classes.get(claim.class_name)
        return (known.provisioner, f"claim {key}") if known is not None and known.provisioner else None

    # -- feasible nodes -----------------------------------------------------------------------------------------

    def reachable_nodes(self, pod: PodInfo) -> Mask | None:
        """Return the nodes that reach all volumes of a pod; None: all. Raises RuleError if the pod must wait."""
        result: Mask | None = None
        unprovisioned: list[VolumeClaim] = []
        for name in pod.volumes:
            result = intersect_masks(result, self._nodes_of_claim(pod, name, unprovisioned))
        if len(unprovisioned) > 1 and result is not None:
            # Each claim has a suitable volume there, but two may have the same one.
            nodes = [info.name for info in self._tables.nodes.values() if result[self._tables.state.slots[info.name]]]
            result &= self._tables.mask(
                name for name in nodes if self._assign_smallest(unprovisioned, name) is not None
            )
        full = self.attached.full(pod)
        return result if full is None else intersect_masks(result, ~full)

    def _nodes_of_claim(self, pod: PodInfo, name: str, unprovisioned: list[VolumeClaim]) -> Mask | None:
        claim = self._claims.get(f"{pod.namespace}/{name}")
        key = f"volume claim {pod.namespace}/{name}"
        if claim is None:
            raise NotYetError(f"waits for PersistentVolumeClaim {name}, which does not exist", key)
        if claim.gone:
            raise NotYetError(f"PersistentVolumeClaim {name} {claim.gone}", key)
        if self._owned and name in pod.ephemeral_claims and claim.owner != pod.uid:
            raise RuleError(f"PersistentVolumeClaim {name} for its ephemeral volume exists but is not owned by the pod")
        if claim.one_pod and any(uid != pod.uid for uid in self.attached.users(claim.key)):
            raise RuleError(f"PersistentVolumeClaim {name} is ReadWriteOncePod and in use by another pod")
        if claim.volume:
            volume = self._volumes.get(claim.volume)
            if volume is None:
                words = f"waits for PersistentVolume {claim.volume} of claim {name}, which does not exist"
                raise NotYetError(words, f"volume {claim.volume}")
            return intersect_masks(
                self._selected_nodes(volume.affinity),
                self._nodes_in_zones(volume) if name not in pod.ephemeral_claims else None,
            )
        known = self._classes.get(claim.class_name, _IMMEDIATE)
        if known.mode != LATER or claim.asked:
            raise NotYetError(f"waits for PersistentVolumeClaim {name} to be bound", key)
        static = self._nodes_with_volume(claim)
        if not self.is_provisioned(pod, name):
            unprovisioned.append(claim)
            return static if static is not None else self._tables.mask(())
        made = intersect_masks(self._selected_nodes(known.topologies), self._nodes_with_capacity(claim, known))
        if claim.selected:
            # The driver is provisioning it for this node.
            return intersect_masks(made, self._tables.mask((claim.selected,)))
        return made if made is None or static is None else made | static

    def _nodes_with_volume(self, claim: VolumeClaim) -> Mask | None:
        """Return the nodes with an available volume for a claim; None if no volume suits it."""
        result: Mask | None = None
        for volume in self._by_class.get(claim.class_name, {}).values():
            if self._is_suitable(volume, claim):
                here = self._selected_nodes(volume.affinity)
                if here is None:
                    return self._tables.mask(self._tables.nodes)
                result = here if result is None else result | here
        return result

    def _is_suitable(self, volume: LiveVolume, claim: VolumeClaim) -> bool:
        """Return True if a claim can have a volume. Source: k8s.io/component-helpers, FindMatchingVolume."""
        if volume.owner is not None:
            return volume.meant_for(claim)
        return (
            volume.available
            and volume.size >= claim.size
            and volume.mode == claim.mode
            and volume.attributes_class == claim.attributes_class
            and claim.modes <= volume.modes
            and self._assigned.get(volume.name, claim.uid) == claim.uid
            and (claim.selector is None or selector(claim.selector)(volume.labels))
        )

    def _assign_smallest(self, claims: Iterable[VolumeClaim], node: str) -> dict[str, str] | None:
        """Return the smallest suitable volume on a node for each claim, by claim; None if there are too few."""
        slot = self._tables.state.slots[node]
        volumes: dict[str, str] = {}
        for claim in sorted(claims, key=lambda claim: claim.size):
            best: LiveVolume | None = None
            for volume in self._by_class.get(claim.class_name, {}).values():
                if volume.name in volumes.values() or not self._is_suitable(volume, claim):
                    continue
                reach = self._selected_nodes(volume.affinity)
                if reach is not None and not reach[slot]:
                    continue
                if best is None or volume.meant_for(claim) or volume.size < best.size:
                    best = volume
            if best is None:
                return None
            volumes[claim.name] = best.name
        return volumes

    def _nodes_with_capacity(self, claim: VolumeClaim, known: LiveStorageClass) -> Mask | None:
        """Return the nodes on which a driver has capacity for a new volume; None if it reports none."""
        if known.provisioner not in self._capacity_drivers or not claim.size:
            return None
        by_label: dict[str, set[str]] = {}
        matchers = []
        for room in self._capacities.values():
            if room.class_name != claim.class_name or room.size < claim.size or room.nodes is None:
                continue
            labels = room.nodes.get("matchLabels") or {}
            if len(labels) == 1 and not room.nodes.get("matchExpressions"):
                for key, value in labels.items():
                    by_label.setdefault(key, set()).add(value)
            else:
                matchers.append(selector(room.nodes))
        return self._tables.mask(
            info.name
            for info in self._tables.nodes.values()
            if any(info.labels.get(key) in values for key, values in by_label.items())
            or any(match(info.labels) for match in matchers)
        )

    def _selected_nodes(self, affinity: bytes) -> Mask | None:
        """Return the nodes that a NodeSelector matches; None: all."""
        return self._cached_mask(affinity, lambda: node_selector(orjson.loads(affinity))) if affinity else None

    def _nodes_in_zones(self, volume: LiveVolume) -> Mask | None:
        """Return the nodes in a volume's zones; None: all."""
        zones = volume.zones

        def match(_name: str, labels: Labels) -> bool:
            # A cluster of one zone may have no labels.
            return labels.keys().isdisjoint(ZONES) or all(
                labels.get(key, labels.get(ZONES[key])) in values for key, values in zones
            )

        return self._cached_mask(repr(zones).encode(), lambda: match) if zones else None

    def _cached_mask(self, key: bytes, matcher: Callable[[], Callable[[str, Labels], bool]]) -> Mask:
        now = self._tables.node_epoch
        known = self._masks.get(key)
        if known is None or known[0] != now:
            if len(self._masks) > 10_000:
                self._masks.clear()
            match = matcher()
            mask = self._tables.mask(info.name for info in self._tables.nodes.values() if match(info.name, info.labels))
            known = self._masks[key] = (now, mask)
        return known[1]

    # -- binding --------------------------------------------------------------------------------------------

    def unbound_claims(self, pod: PodInfo) -> tuple[str, ...]:
        """Return the claims of a pod that are bound after node selection (WaitForFirstConsumer)."""
        claims = (self._claims.get(f"{pod.namespace}/{name}") for name in pod.volumes)
        return tuple(claim.name for claim in claims if claim is not None and not claim.volume)

    def are_bound(self, pod: PodInfo) -> bool:
        """Return True if all claims of a pod are bound."""
        known = [self._claims.get(f"{pod.namespace}/{name}") for name in pod.volumes]
        return all(claim is not None and claim.volume for claim in known)

    def has_volume_on(self, pod: PodInfo, name: str, node: str) -> bool:
        """Return True if a claim is bound, or assigned a volume on this node."""
        claim = self._claims.get(f"{pod.namespace}/{name}")
        return claim is not None and bool(claim.volume or claim.selected == node)

    def is_provisioned(self, pod: PodInfo, name: str) -> bool:
        """Return True if a provisioner creates volumes for a claim."""
        claim = self._claims.get(f"{pod.namespace}/{name}")
        known = self._classes.get(claim.class_name, _IMMEDIATE) if claim is not None else _IMMEDIATE
        return known.provisioner not in ("", NO_PROVISIONER)

    def assign(self, pod: PodInfo, names: Iterable[str], node: str) -> dict[str, tuple[LiveVolume, VolumeClaim]]:
        """Assign available volumes on a node to claims of a pod, and return them by claim."""
        result: dict[str, tuple[LiveVolume, VolumeClaim]] = {}
        claims = [self._claims[f"{pod.namespace}/{name}"] for name in names]
        together = self._assign_smallest(claims, node)
        for claim in claims:
            alone = together or self._assign_smallest([claim], node) or {}
            volume = self._volumes.get(alone.get(claim.name, ""))
            if volume is not None and self._assigned.get(volume.name, claim.uid) == claim.uid:
                self._assigned[volume.name] = claim.uid
                result[claim.name] = (volume, claim)
        return result

    def end_assignment(self, volumes: Iterable[LiveVolume]) -> None:
        """End the assignment of volumes that are now bound or failed to bind."""
        for volume in volumes:
            self._assigned.pop(volume.name, None)
