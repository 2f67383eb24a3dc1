"""Drain guard: a worker whose loss would lose data is held back from eviction until the data is in its store.

The compiled PodDisruptionBudget of such a tier refuses the eviction of all its workers but those with the label
`avactl.dev/safe-to-drain`. A worker gets the label while its node is cordoned, as `kubectl drain` does first, and
nothing unpersisted is only on workers of cordoned nodes. Without a daemon no worker gets it, so drains wait.
"""

from __future__ import annotations

from typing import Any

from avactl.base.object_identity import object_reference
from avactl.base.quantity import format_quantity
from avactl.contracts.names import SAFE_TO_DRAIN
from avactl.daemons.cache.pods import Nodes, TierPods
from avactl.daemons.cache.writeback.push import Hosts, WriteBackTask
from avactl.kube.client import MERGE, ApiError, Client
from avactl.kube.events import EventRecorder
from avactl.kube.pod_diagnosis import is_ready


class DrainGuard:
    """The guard of one write tier."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        tier: str,
        pods: TierPods,
        nodes: Nodes,
        write_back: WriteBackTask,
        events: EventRecorder,
    ) -> None:
        self._client, self._namespace, self._tier = client, namespace, tier
        self._pods, self._nodes, self._write_back, self._events = pods, nodes, write_back, events
        self._told: set[str] = set()
        """UIDs of pods whose owners were told."""

    def hosts(self) -> Hosts:
        """Return the hosts of workers that stay and of those that leave; a pod that is not ready does neither."""
        staying: set[str] = set()
        leaving: set[str] = set()
        for pod in self._pods.of(self._tier, "worker"):
            if pod["spec"].get("nodeName") in self._nodes.cordoned:
                leaving |= _pod_hosts(pod)
            elif is_ready(pod):
                staying |= _pod_hosts(pod)
        return Hosts(frozenset(staying), frozenset(leaving))

    async def tick(self) -> None:
        """Set and remove labels. Raises ApiError and UnreachableError."""
        alone: dict[str, int] = {}
        for address, size in self._write_back.alone.items():
            host = address.rpartition(":")[0]
            alone[host] = alone.get(host, 0) + size
        for pod in self._pods.of(self._tier, "worker"):
            hosts = _pod_hosts(pod)
            drained = pod["spec"].get("nodeName") in self._nodes.cordoned
            size = sum(alone.get(host, 0) for host in hosts)
            # Only a look that knew of the drain counts.
            safe = drained and bool(hosts) and bool(hosts & self._write_back.judged.leaving) and not size
            await self._set_label(pod, safe)
            uid, regarding = pod["metadata"].get("uid", ""), object_reference("v1", "Pod", pod["metadata"])
            if drained and size and uid not in self._told:
                self._told.add(uid)
                note = f"eviction waits: {format_quantity(size)} bytes are in no store and on no other worker"
                await self._events.record(regarding, "DrainHeldBack", note, warning=True)
            elif safe and uid in self._told:
                self._told.discard(uid)
                await self._events.record(regarding, "SafeToDrain", "all data is persisted or on other workers")

    async def _set_label(self, pod: dict[str, Any], safe: bool) -> None:
        metadata = pod["metadata"]
        if ((metadata.get("labels") or {}).get(SAFE_TO_DRAIN) == "true") is safe:
            return
        patch = {"metadata": {"labels": {SAFE_TO_DRAIN: "true" if safe else None}, "uid": metadata.get("uid")}}
        path = f"/api/v1/namespaces/{self._namespace}/pods/{metadata['name']}"
        try:
            await self._client.send("PATCH", path, patch, content_type=MERGE)
        except ApiError as error:
            if error.status not in (404, 409):  # it is gone, or another with its name is there
                raise


def _pod_hosts(pod: dict[str, Any]) -> set[str]:
    status = pod.get("status") or {}
    return {str(status[key]) for key in ("podIP", "hostIP") if status.get(key)}
