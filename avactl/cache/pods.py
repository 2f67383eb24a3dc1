"""Pods as far as the daemon needs them: those that wait for data, and those of tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avactl.kube.objects import object_key


class PendingPods:
    """A `Store` of pending pods; only those that mount a claim count."""

    def __init__(self) -> None:
        self._namespaces: dict[str, str] = {}

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a pod."""
        volumes = item["spec"].get("volumes") or ()
        self._namespaces[object_key(item)] = (
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
    """A `Store` of the pods in the namespace of the tiers, by key."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a pod."""
        self.pods[object_key(item)] = item

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
            pod for pod in self.pods.values()
            if all((pod["metadata"].get("labels") or {}).get(name) == value for name, value in wanted)
        ]  # fmt: skip

    def node_of(self, address: str) -> str:
        """Return the node of a worker's address, `HOST:PORT`; the host if no pod has it."""
        host = address.rpartition(":")[0]
        for pod in self.pods.values():
            status = pod.get("status") or {}
            if host in (status.get("podIP"), status.get("hostIP")) and pod["spec"].get("nodeName"):
                return str(pod["spec"]["nodeName"])
        return host


class CordonedNodes:
    """A `Store` of nodes: the names of those that are cordoned."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._known: set[str] = set()

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a node."""
        name = item["metadata"]["name"]
        self._known.add(name)
        if item["spec"].get("unschedulable") is True:
            self.names.add(name)
        else:
            self.names.discard(name)

    def remove(self, key: str) -> None:
        """Remove a node."""
        self._known.discard(key)
        self.names.discard(key)

    def keys(self) -> Iterable[str]:
        """Return the names of all nodes."""
        return list(self._known)
