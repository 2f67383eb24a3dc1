"""Storage objects, reduced to the fields that placement needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from avactl.base.object_identity import controller_of
from avactl.base.quantity import whole_units

SELECTED_NODE = "volume.kubernetes.io/selected-node"
LATER = "WaitForFirstConsumer"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ONE_POD = "ReadWriteOncePod"
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
"""The predecessor of `storageClassName`, which still takes precedence."""
ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Topology labels of volumes that nodes must match, and their newer equivalents."""


def _parse_size(given: Mapping[str, Any] | None) -> int:
    text = (given or {}).get("storage")
    return whole_units(text) if text is not None else 0


def _class_of(item: Mapping[str, Any]) -> str:
    notes = item["metadata"].get("annotations") or {}
    return str(notes.get(OLD_CLASS, item["spec"].get("storageClassName") or ""))


def _parse_zones(labels: Mapping[str, str]) -> tuple[tuple[str, frozenset[str]], ...]:
    """Source: k8s.io/cloud-provider/volume/helpers, LabelZonesToSet: several are joined by two underscores."""
    found = []
    for key in ZONES:
        values = frozenset(part.strip() for part in labels.get(key, "").split("__"))
        if "" not in values:
            found.append((key, values))
    return tuple(found)


class VolumeClaim(NamedTuple):
    """One PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str
    volume: str
    """Name of the bound volume; empty if unbound."""
    asked: str
    """Volume requested by name."""
    class_name: str
    selected: str
    """Node for which its volume is provisioned."""
    size: int
    """Requested size in bytes."""
    modes: frozenset[str]
    mode: str
    selector: Mapping[str, Any] | None
    attributes_class: str
    owner: str
    """UID of its controller; empty if it has none."""
    gone: str
    """Reason why it is unusable; empty if it is usable."""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> VolumeClaim:
        """Parse the Kubernetes object."""
        metadata, spec = item["metadata"], item["spec"]
        phase = (item.get("status") or {}).get("phase")
        named = spec.get("volumeName") or ""
        gone = "lost its volume" if phase == "Lost" else ""
        if "deletionTimestamp" in metadata:
            gone = "is being deleted"
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            volume=named if phase == "Bound" else "",
            asked=named,
            class_name=_class_of(item),
            selected=(metadata.get("annotations") or {}).get(SELECTED_NODE, ""),
            size=_parse_size((spec.get("resources") or {}).get("requests")),
            modes=frozenset(spec.get("accessModes") or ()),
            mode=spec.get("volumeMode") or "Filesystem",
            selector=spec.get("selector"),
            attributes_class=spec.get("volumeAttributesClassName") or "",
            owner=controller_of(metadata).get("uid", ""),
            gone=gone,
        )

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def one_pod(self) -> bool:
        """True for access mode ReadWriteOncePod."""
        return _ONE_POD in self.modes


class LiveVolume(NamedTuple):
    """One PersistentVolume."""

    name: str
    uid: str
    affinity: bytes
    """Nodes that can access it, as JSON of a NodeSelector; empty for all."""
    driver: str
    """CSI driver; empty for other volumes."""
    handle: str
    class_name: str
    size: int
    modes: frozenset[str]
    mode: str
    owner: tuple[str, str, str] | None
    """Namespace, name and UID (may be empty) of its claim."""
    available: bool
    labels: Mapping[str, str]
    version: str
    attributes_class: str
    zones: tuple[tuple[str, frozenset[str]], ...]
    """Allowed values by node label; nodes without the label also qualify."""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> LiveVolume:
        """Parse the Kubernetes object."""
        metadata, spec = item["metadata"], item["spec"]
        affinity = (spec.get("nodeAffinity") or {}).get("required")
        csi, owner = spec.get("csi") or {}, spec.get("claimRef")
        phase = (item.get("status") or {}).get("phase")
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            affinity=orjson.dumps(affinity) if affinity else b"",
            driver=csi.get("driver") or "",
            handle=csi.get("volumeHandle") or "",
            class_name=_class_of(item),
            size=_parse_size(spec.get("capacity")),
            modes=frozenset(spec.get("accessModes") or ()),
            mode=spec.get("volumeMode") or "Filesystem",
            owner=(owner["namespace"], owner["name"], owner.get("uid") or "") if owner else None,
            available=phase == "Available" and "deletionTimestamp" not in metadata,
            labels=metadata.get("labels") or {},
            version=metadata["resourceVersion"],
            attributes_class=spec.get("volumeAttributesClassName") or "",
            zones=_parse_zones(metadata.get("labels") or {}),
        )

    def meant_for(self, claim: VolumeClaim) -> bool:
        """Return True if the volume is bound to a claim or reserved for it."""
        owner = self.owner
        return owner is not None and owner[:2] == (claim.namespace, claim.name) and owner[2] in ("", claim.uid)


class LiveStorageClass(NamedTuple):
    """One StorageClass."""

    mode: str
    provisioner: str
    topologies: bytes
    """Nodes for which it provisions volumes, as JSON of a NodeSelector; empty for all."""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> LiveStorageClass:
        """Parse the Kubernetes object."""
        terms = [
            {"matchExpressions": [{**each, "operator": "In"} for each in term.get("matchLabelExpressions") or ()]}
            for term in item.get("allowedTopologies") or ()
        ]
        return cls(
            item.get("volumeBindingMode") or "Immediate",
            item.get("provisioner") or "",
            orjson.dumps({"nodeSelectorTerms": terms}) if terms else b"",
        )


class StorageCapacity(NamedTuple):
    """One CSIStorageCapacity: the maximum volume size of a class on some nodes."""

    class_name: str
    size: int
    nodes: Mapping[str, Any] | None
    """Node label selector; None for no nodes."""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> StorageCapacity:
        """Parse the Kubernetes object."""
        text = item.get("maximumVolumeSize") or item.get("capacity")
        return cls(item["storageClassName"], whole_units(text) if text is not None else -1, item.get("nodeTopology"))
