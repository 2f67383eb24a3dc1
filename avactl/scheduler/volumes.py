"""Volumes that are on some machines only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from avactl.scheduler.rules import NotYetError, RuleError, node_selector

if TYPE_CHECKING:
    from avactl.scheduler.fleet import Fleet, Mask
    from avactl.scheduler.pod import Pod

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_LATER = "WaitForFirstConsumer"
_NOTHING = ("", "", "")
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Volumes:
    """Claims, volumes and classes, as far as placement needs them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._claims: dict[str, tuple[str, str, str]] = {}
        """Volume, class, and the node that was selected, by `namespace/name`."""
        self._volumes: dict[str, Any] = {}
        """Required node affinity by name."""
        self._classes: dict[str, tuple[str, str, Any]] = {}
        """Binding mode, provisioner, allowed topologies."""

    def put_claim(self, item: Mapping[str, Any]) -> None:
        """A PersistentVolumeClaim is there, or has changed."""
        metadata, spec = item["metadata"], item["spec"]
        selected = (metadata.get("annotations") or {}).get(SELECTED_NODE, "")
        bound = (item.get("status") or {}).get("phase") == "Bound"
        now = (spec.get("volumeName") or "" if bound else "", spec.get("storageClassName") or "", selected)
        key = f"{metadata['namespace']}/{metadata['name']}"
        if self._claims.get(key) != now:
            self._claims[key] = now
            self._fleet.freed += 1

    def put_volume(self, item: Mapping[str, Any]) -> None:
        """A PersistentVolume is there, or has changed."""
        affinity = (item["spec"].get("nodeAffinity") or {}).get("required")
        name = item["metadata"]["name"]
        if name not in self._volumes or self._volumes[name] != affinity:
            self._volumes[name] = affinity
            self._fleet.freed += 1

    def put_class(self, item: Mapping[str, Any]) -> None:
        """A StorageClass is there, or has changed."""
        mode = item.get("volumeBindingMode") or "Immediate"
        self._classes[item["metadata"]["name"]] = (mode, item.get("provisioner", ""), item.get("allowedTopologies"))

    def drop_claim(self, key: str) -> None:
        """A claim is gone."""
        self._claims.pop(key, None)

    def drop_volume(self, key: str) -> None:
        """A volume is gone."""
        self._volumes.pop(key, None)

    def drop_class(self, key: str) -> None:
        """A class is gone."""
        self._classes.pop(key, None)

    def keys(self, kind: str) -> list[str]:
        """What is known: `claims`, `volumes` or `classes`."""
        return list({"claims": self._claims, "volumes": self._volumes, "classes": self._classes}[kind])

    def among(self, pod: Pod) -> Mask | None:
        """The nodes that reach all volumes of a pod; None: all. Raises RuleError where it must wait."""
        result: Mask | None = None
        for name in pod.volumes:
            found = self._reach(pod, name)
            if found is not None:
                result = found if result is None else result & found
        return result

    def _reach(self, pod: Pod, name: str) -> Mask | None:
        claim = self._claims.get(f"{pod.namespace}/{name}")
        if claim is None:
            raise NotYetError(f"waits for the PersistentVolumeClaim {name}, which is not there")
        volume, class_name, _ = claim
        if volume:
            if volume not in self._volumes:
                raise NotYetError(f"waits for the PersistentVolume {volume} of claim {name}, which is not there")
            return self._selected(self._volumes[volume])
        mode, provisioner, topologies = self._classes.get(class_name, ("Immediate", "", None))
        if mode != _LATER:
            raise NotYetError(f"waits for the PersistentVolumeClaim {name}, which is not bound yet")
        if provisioner == _NO_PROVISIONER:
            raise RuleError(
                f"claim {name} is of class {class_name}, whose volumes are made by hand and bound by the scheduler; "
                "that is not supported: bind the claim to its volume by `volumeName`"
            )
        if not topologies:
            return None
        terms = [
            {"matchExpressions": [{**each, "operator": "In"} for each in term.get("matchLabelExpressions") or ()]}
            for term in topologies
        ]
        return self._selected({"nodeSelectorTerms": terms})

    def _selected(self, affinity: Any) -> Mask | None:
        if affinity is None:
            return None
        match = node_selector(affinity)
        return self._fleet.mask(info.name for info in self._fleet.nodes.values() if match(info.name, info.labels))

    def unbound(self, pod: Pod) -> tuple[str, ...]:
        """Claims of a pod that get their volume only when they know its node."""
        return tuple(name for name in pod.volumes if not self._claims.get(f"{pod.namespace}/{name}", _NOTHING)[0])

    def bound(self, pod: Pod) -> bool:
        """Whether all claims of a pod have their volumes."""
        return not self.unbound(pod)

    def meant_for(self, pod: Pod, name: str, node: str) -> bool:
        """Whether a claim has its volume, or waits for one on this node."""
        volume, _, selected = self._claims.get(f"{pod.namespace}/{name}", _NOTHING)
        return bool(volume) or selected == node
