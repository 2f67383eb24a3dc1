"""Partial gangs: complete them, or release their GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.scheduler import metrics
from avactl.scheduler.objects.pod_info import PARTIAL, PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue
from avactl.scheduler.writers.evictor import disruption_patch
from avactl.scheduler.writers.pod_reporter import PodReporter

SETTLING_TIME_S = 2.0
"""Time after the last pod of a gang was created until missing pods are reported."""


class StaleGangs:
    """Handles gangs left partial by a crash, a lost node or a deleted pod."""

    def __init__(
        self,
        client: Client,
        rate: Rate,
        queue: SchedulingQueue,
        reporter: PodReporter,
        grace: float,
        leading: Callable[[], bool],
    ) -> None:
        self._client, self._rate, self._queue, self._reporter, self._grace = client, rate, queue, reporter, grace
        self._leading = leading
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: set[str] = set()

    def tick(self) -> None:
        """Track partial gangs, and evict those that have been partial for too long."""
        now = monotonic()
        for unit in self._queue:
            if not unit.gang:
                continue
            self._report_incomplete(unit, now)
            if not is_partial(unit):
                unit.partial = None
            elif unit.partial is None:
                unit.partial = now
                if unit.waiting:
                    self._queue.push(unit)
            elif now - unit.partial > self._grace and not (unit.pod_group is not None and unit.pod_group.started):
                # `minCount` of a PodGroup stops no pods: it counts for those that start.
                self._restart_gang(unit)

    def _report_incomplete(self, unit: QueuedPodGroup, now: float) -> None:
        """Report gangs with pods that do not exist, unless they are still being created."""
        if now - unit.changed < SETTLING_TIME_S:
            return
        waiting = unit.waiting
        need = unit.missing
        if waiting and need > len(waiting):
            there = unit.size - need + len(waiting)
            for pod in waiting:
                message = f"waits for the other pods of its gang: {there} of {unit.size} exist"
                self._reporter.unschedulable(pod, message, WaitReason.GANG)

    def _restart_gang(self, unit: QueuedPodGroup) -> None:
        running = [pod for pod in unit.pods.values() if pod.node and not (pod.ended or pod.deleting)]
        note = f"{len(running)} of {unit.size} pods of the gang run and the others do not fit: the gang is restarted"
        for pod in running:
            if pod.uid not in self._deleting:
                self._deleting.add(pod.uid)
                task = asyncio.ensure_future(self._delete_pod(pod, note))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if running:
            logs.warn("partial gang stopped", gang=unit.key, running=len(running), size=unit.size)
        unit.partial = None

    async def _delete_pod(self, pod: PodInfo, note: str) -> None:
        try:
            if await self._mark_and_delete(pod, note):
                metrics.EVICTIONS.labels("partial-gang").inc()
                self._reporter.stopped(pod, PARTIAL, note)
        except (ApiError, UnreachableError) as error:
            logs.warn("pod not stopped", pod=pod.key, error=str(error))
        finally:
            self._deleting.discard(pod.uid)

    async def _mark_and_delete(self, pod: PodInfo, note: str) -> bool:
        """Delete a pod, marked so that its Job does not count it as a failure; return True if it was deleted.

        Raises ApiError and UnreachableError.
        """
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            await self._rate.take()
            if self._leading():
                marked = disruption_patch(pod, PARTIAL, note)
                await self._client.send("PATCH", f"{path}/status", marked, content_type=STRATEGIC)
            await self._rate.take()
            if self._leading():
                await self._client.send("DELETE", path, {"preconditions": {"uid": pod.uid}})
                return True
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        return False


def is_partial(unit: QueuedPodGroup) -> bool:
    """Return True if some members of a gang hold resources while required members do not."""
    holding = any(pod.node and not (pod.ended or pod.deleting or pod.evicting) for pod in unit.pods.values())
    return holding and unit.missing > 0 and not any(pod.assumed for pod in unit.pods.values())
