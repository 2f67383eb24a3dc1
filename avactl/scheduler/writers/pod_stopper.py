"""Stops pods for a reason other than preemption, so that their Jobs make them anew and count no failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.scheduler import metrics
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.evictor import GONE_STATUSES, disruption_patch
from avactl.scheduler.writers.pod_reporter import PodReporter

MAX_CONCURRENT_REQUESTS = 32
STOPPING_TIMEOUT_S = 300.0
"""Seconds after which a pod that still runs is stopped again: its deletion should have been observed long before."""


class PodStopper:
    """Marks pods as disrupted, then deletes them, each once."""

    def __init__(self, client: Client, rate: Rate, reporter: PodReporter, leading: Callable[[], bool]) -> None:
        self._client, self._rate, self._reporter, self._leading = client, rate, reporter, leading
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: dict[str, tuple[PodInfo, float]] = {}
        """Pods by UID whose deletion has been requested and not been observed yet, and since when (monotonic)."""
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    def stop(self, pods: Sequence[PodInfo], reason: str, note: str, cause: str) -> None:
        """Stop pods that belong together.

        `reason` and `note` are those of their condition and Event, `cause` the label of the metric. The pods have their
        termination grace periods. A failed request is logged, and the caller calls again.
        """
        now = monotonic()
        for uid, (pod, since) in list(self._stopping.items()):
            if pod.deleting or pod.ended or now - since > STOPPING_TIMEOUT_S:
                del self._stopping[uid]
        left = [pod for pod in pods if pod.uid not in self._stopping and not (pod.deleting or pod.ended)]
        if left:
            self._stopping.update((pod.uid, (pod, now)) for pod in left)
            task = asyncio.ensure_future(self._stop(left, reason, note, cause))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stop(self, pods: Sequence[PodInfo], reason: str, note: str, cause: str) -> None:
        # All are marked first: when one pod of a gang is gone, the others can fail at once.
        marked = await self._for_each(pods, lambda pod: self._mark(pod, reason, note))
        await self._for_each(marked, lambda pod: self._delete(pod, reason, note, cause))

    async def _for_each(
        self, pods: Sequence[PodInfo], send: Callable[[PodInfo], Coroutine[Any, Any, bool]]
    ) -> list[PodInfo]:
        """Send a request for each pod; return the pods that exist. Failed requests are sent again by the next call."""

        async def attempt(pod: PodInfo) -> bool:
            async with self._limit:
                await self._rate.take()
                try:
                    if self._leading():
                        return await send(pod)
                except ApiError as error:
                    if error.status in GONE_STATUSES:
                        return False
                    logs.warn("pod not stopped", pod=pod.key, error=str(error))
                except UnreachableError as error:
                    logs.warn("pod not stopped", pod=pod.key, error=str(error))
            self._stopping.pop(pod.uid, None)
            return False

        exist = await asyncio.gather(*map(attempt, pods))
        return [pod for pod, exists in zip(pods, exist, strict=True) if exists]

    async def _mark(self, pod: PodInfo, reason: str, note: str) -> bool:
        body = disruption_patch(pod, reason, note)
        await self._client.send("PATCH", f"{_path(pod)}/status", body, content_type=STRATEGIC)
        return True

    async def _delete(self, pod: PodInfo, reason: str, note: str, cause: str) -> bool:
        await self._client.send("DELETE", _path(pod), {"preconditions": {"uid": pod.uid}})
        metrics.EVICTIONS.labels(cause).inc()
        self._reporter.stopped(pod, reason, note)
        return True


def _path(pod: PodInfo) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
