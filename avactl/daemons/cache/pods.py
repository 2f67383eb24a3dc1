"""Pods and volumes as far as the daemon needs them: pods that wait for data, those of tiers, and volumes in tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avactl.base.object_identity import namespaced_name


class PendingPods:
    """An `ObjectReceiver` of pending pods; only those that mount a claim count."""

    def __init__(self) -> None:
        self._namespaces: dict[str, str] = {}

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a pod."""
        volumes = item["spec"].get("volumes") or ()
        self._namespaces[namespaced_name(item)] = (
            item["metadata"]["namespace"] if any("persistentVolumeClaim" in each for each in volumes) else ""
        )

    def remove(self, key: str) -> None:
        """Remove a pod."""
        self._namespaces.pop(key, None)

    def keys(self) -> Iterable[str]:
        """Return the keys of all pods."""
        return list(self._namespaces)

    def namespaces(self) -> set[str]:
        """Return the namespaces with a pod that waits."""
        return set(self._namespaces.values()) - {""}


class TierPods:
    """An `ObjectReceiver` of the pods in the namespace of the tiers, by key."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a pod."""
        self.pods[namespaced_name(item)] = item

    def remove(self, key: str) -> None:
        """Remove a pod."""
        self.pods.pop(key, None)

    def keys(self) -> Iterable[str]:
        """Return the keys of all pods."""
        return list(self.pods)

    def of(self, tier: str, component: str) -> list[dict[str, Any]]:
        """Return the pods of one component of a tier."""
        wanted = ("app.kubernetes.io/instance", tier), ("app.kubernetes.io/component", component)
        return [
            pod
            for pod in self.pods.values()
            if all((pod["metadata"].get("labels") or {}).get(name) == value for name, value in wanted)
        ]

    def node_of(self, address: str) -> str:
        """Return the node of a worker's address, `HOST:PORT`; the host if no pod has it."""
        host = address.rpartition(":")[0]
        for pod in self.pods.values():
            status = pod.get("status") or {}
            if host in (status.get("podIP"), status.get("hostIP")) and pod["spec"].get("nodeName"):
                return str(pod["spec"]["nodeName"])
        return host


class Nodes:
    """An `ObjectReceiver` of nodes: the names of all, and of those that are cordoned."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.cordoned: set[str] = set()

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a node."""
        name = item["metadata"]["name"]
        self.known.add(name)
        if item["spec"].get("unschedulable") is True:
            self.cordoned.add(name)
        else:
            self.cordoned.discard(name)

    def remove(self, key: str) -> None:
        """Remove a node."""
        self.known.discard(key)
        self.cordoned.discard(key)

    def keys(self) -> Iterable[str]:
        """Return the names of all nodes."""
        return list(self.known)


class TierVolumes:
    """An `ObjectReceiver` of the PersistentVolumes that avactl compiles on directories of machines."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[str, tuple[str, str]]] = {}

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a volume."""
        spec = item["spec"]
        claim, path = spec.get("claimRef") or {}, (spec.get("hostPath") or {}).get("path")
        if path and claim:
            found = str(claim.get("namespace")), str(claim.get("name"))
            self._claims[namespaced_name(item)] = (str(path), found)

    def remove(self, key: str) -> None:
        """Remove a volume."""
        self._claims.pop(key, None)

    def keys(self) -> Iterable[str]:
        """Return the keys of all volumes."""
        return list(self._claims)

    def claims(self, directory: str) -> set[tuple[str, str]]:
        """Return namespaces and names of the claims for volumes below a directory of machines."""
        return {claim for path, claim in self._claims.values() if path.startswith(f"{directory}/")}
