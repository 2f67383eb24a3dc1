"""Pods of tests: made, awaited, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.controlplane import KubeClient
from tools.realnode import RealNode

TIMEOUT = 120.0  # seconds; a pod starts in one
POD_FIELDS: tuple[str, ...] = ("volumes",)


class Cluster(NamedTuple):
    """A namespace on real nodes."""

    node: RealNode
    kube: KubeClient
    namespace: str

    def create(self, name: str, image: str, command: Sequence[str], *, on: str = "", **more: Any) -> None:
        """Create a pod of one container; `on` is its node; `more` has labels, and fields of both."""
        pod = {key: more.pop(key) for key in POD_FIELDS if key in more}
        if on:
            pod["nodeName"] = on
        labels = more.pop("labels", {})
        container = {"name": "main", "image": image, "command": list(command), **more}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **pod}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        self.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def ended(self, name: str) -> dict[str, Any]:
        """Wait until a pod has ended, and return it."""
        return self._pod(name, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"))

    def ready(self, name: str) -> dict[str, Any]:
        """Wait until a pod is ready, and return it."""
        return self._pod(name, is_ready)

    def run(self, name: str, image: str, command: Sequence[str], **more: Any) -> str:
        """Run a pod to its end, which must be a success, and return its log."""
        self.create(name, image, command, **more)
        pod, log = self.ended(name), self.logs(name)
        assert pod["status"]["phase"] == "Succeeded", (pod["status"], log)
        return log

    def logs(self, name: str) -> str:
        """The log of a pod."""
        return self.node.logs(self.namespace, name)

    def delete(self, name: str) -> None:
        """Delete a pod, and wait until it is gone."""
        self.kube.delete("v1", "Pod", name, self.namespace)
        self.kube.wait_gone("v1", "Pod", name, self.namespace, timeout=TIMEOUT)

    def _pod(self, name: str, until: Any) -> dict[str, Any]:
        return self.kube.wait_for("v1", "Pod", name, self.namespace, until=until, timeout=TIMEOUT)


def is_ready(body: dict[str, Any]) -> bool:
    """Return True if a pod or node is ready."""
    conditions = body["status"].get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def sh(script: str) -> list[str]:
    """The command of a shell script."""
    return ["sh", "-euc", script]
