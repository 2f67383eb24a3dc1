"""FUSE mounts of a tier: pods that read through one are told when it is gone for a while, and when it is new."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from avactl.base.object_identity import object_reference
from avactl.contracts.cache import TierStatus
from avactl.daemons.cache import metrics
from avactl.daemons.cache.pods import Nodes, TierPods, TierVolumes
from avactl.kube.client import Client
from avactl.kube.events import EventRecorder
from avactl.kube.pod_diagnosis import is_ready

CONTAINER = "fuse"
"""Container of a FUSE pod that mounts the tier."""
PATIENCE = 30.0
"""Seconds for which a mount may be away before pods are told."""
_MAX_PODS = 200
"""Pods of one machine that are told."""


class FuseMounts:
    """The mounts of one tier."""

    def __init__(
        self,
        client: Client,
        tier: str,
        directory: str,
        pods: TierPods,
        volumes: TierVolumes,
        nodes: Nodes,
        events: EventRecorder,
        facts: TierStatus,
    ) -> None:
        """`directory` is where pods' volumes of the tier are on each machine, `facts` the tier's part of the status."""
        self._facts = facts
        self._client, self._tier, self._directory = client, tier, directory
        self._pods, self._volumes, self._nodes, self._events = pods, volumes, nodes, events
        self._mounted: dict[str, tuple[str, int]] = {}
        """By node: the FUSE process that mounted the tier last, as the pod's UID and the container's restarts."""
        self._away: dict[str, float] = {}
        """By node: since when its mount is away, by the monotonic clock."""
        self._told: set[str] = set()

    async def tick(self) -> None:
        """Compare the FUSE pods with the last look. Raises ApiError and UnreachableError."""
        now, mounted = time.monotonic(), {}
        for pod in self._pods.of(self._tier, "fuse"):
            node = pod["spec"].get("nodeName")
            if node and is_ready(pod):
                mounted[node] = (str(pod["metadata"].get("uid")), _restart_count(pod))
        for node in self._mounted.keys() - self._nodes.known:
            del self._mounted[node]
            self._away.pop(node, None)
            self._told.discard(node)
        for node in self._mounted.keys() - mounted.keys():
            since = self._away.setdefault(node, now)
            if now - since > PATIENCE and node not in self._told:
                note = f"FUSE of cache tier {self._tier} is not mounted on node {node}: reads and writes wait or fail"
                await self._tell_readers(node, "CacheMountUnavailable", note, warning=True)
                self._told.add(node)
        for node, process in mounted.items():
            if self._mounted.get(node, process) != process:
                note = (
                    f"FUSE of cache tier {self._tier} was mounted anew on node {node}: "
                    "files that were open report errors, others can be read on"
                )
                await self._tell_readers(node, "CacheMountRenewed", note, warning=False)
            self._mounted[node] = process
            self._away.pop(node, None)
            self._told.discard(node)
        self._facts.mounts, self._facts.mounts_lost = len(mounted), len(self._away)
        metrics.MOUNTS.labels(self._tier, "mounted").set(len(mounted))
        metrics.MOUNTS.labels(self._tier, "lost").set(len(self._away))

    async def _tell_readers(self, node: str, reason: str, note: str, *, warning: bool) -> None:
        claims = self._volumes.claims(self._directory)
        query = urlencode({"fieldSelector": f"spec.nodeName={node},status.phase=Running", "limit": 1000})
        found = (await self._client.request("GET", f"/api/v1/pods?{query}")).get("items") or []
        readers = [pod for pod in found if _pod_claims(pod) & claims]
        for pod in readers[:_MAX_PODS]:
            await self._events.record(object_reference("v1", "Pod", pod["metadata"]), reason, note, warning=warning)


def _restart_count(pod: dict[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((int(each.get("restartCount") or 0) for each in statuses if each.get("name") == CONTAINER), 0)


def _pod_claims(pod: dict[str, Any]) -> set[tuple[str, str]]:
    sources = (each.get("persistentVolumeClaim") for each in pod["spec"].get("volumes") or ())
    return {(pod["metadata"]["namespace"], str(source.get("claimName"))) for source in sources if source}
