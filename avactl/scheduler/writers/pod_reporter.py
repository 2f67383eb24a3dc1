"""Events, as kube-scheduler writes them, and the PodScheduled condition of pending pods."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.kube.events import EventPoster, new_event
from avactl.kube.timestamps import timestamp
from avactl.scheduler import metrics
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

_WORKERS = 16
_FEW = 4
_TRIES = 4
_MAX_REPORTS = 100_000
"""Reports that wait to be written; beyond it they are dropped."""
_REPEAT = 30.0
"""Seconds before a pod that still waits is told new counts."""
_PATIENCE = 2.0
"""Seconds for which what is on its way is not spoken of, and before a pod is told another kind of wait."""


class _Report(NamedTuple):
    """An Event, or with a path a patch of a pod's status."""

    body: dict[str, Any]
    path: str = ""


class PodReporter:
    """Writes events and conditions asynchronously, with its own rate limit."""

    def __init__(self, client: Client, rate: Rate) -> None:
        self._client, self._rate = client, rate
        self._events = EventPoster(client)
        self.yield_to: Callable[[], bool] = lambda: False
        """Return True while bindings are in flight: reports are then written a few at a time."""
        self._urgent: deque[_Report] = deque()
        """First reports of pods: new pods must not queue behind those that were reported before."""
        self._queue: deque[_Report] = deque()
        self._ready = asyncio.Semaphore(0)
        self._waiting: dict[str, tuple[PodInfo, float]] = {}
        """Pods that are to be told something, and when."""

    # -- what is said -----------------------------------------------------------------------------------------------

    def scheduled(self, pod: PodInfo, node: str) -> None:
        """Report a bound pod."""
        self._waiting.pop(pod.uid, None)
        note = f"Successfully assigned {pod.key} to {node}"
        self._event(pod, "Normal", "Scheduled", "Binding", note)

    def unschedulable(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Report an unschedulable pod and the reason: once per message, and rarely if only numbers in it change."""
        self._waiting.pop(pod.uid, None)
        if (message, reason) == (pod.message, pod.wait_reason):
            return
        wait = _REPEAT if reason == pod.wait_reason else _PATIENCE
        if not pod.reported or monotonic() - pod.reported >= wait:
            self._tell(pod, message, reason)
        else:
            pod.pending_message, pod.pending_reason = message, reason
            self._waiting[pod.uid] = (pod, pod.reported + wait)

    def not_yet(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Report a pod that waits for an expected event, once that takes long."""
        if message != pod.message and (pod.uid not in self._waiting or pod.pending_message != message):
            pod.pending_message, pod.pending_reason = message, reason
            self._waiting[pod.uid] = (pod, monotonic() + _PATIENCE)

    def stopped(self, pod: PodInfo, reason: str, note: str) -> None:
        """Report a pod that the scheduler deletes."""
        self._event(pod, "Warning", reason, "Preempting", note)

    def warn_of_node(self, node: str, reason: str, note: str) -> None:
        """Post a warning about a node, in the namespace of node events."""
        regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
        self._put(
            _Report(new_event(names.CONTROLLER, "Scheduling", regarding, reason, note, warning=True)), self._queue
        )

    def later(self) -> None:
        """Write the delayed messages that are still true."""
        now = monotonic()
        for uid, (pod, due) in list(self._waiting.items()):
            if not pod.waiting:
                del self._waiting[uid]
            elif now >= due:
                del self._waiting[uid]
                if (pod.pending_message, pod.pending_reason) != (pod.message, pod.wait_reason):
                    self._tell(pod, pod.pending_message, pod.pending_reason)

    def _tell(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        first = not pod.message
        pod.reported, pod.message, pod.wait_reason = monotonic(), message, reason
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason.value,
            "message": message,
            "lastTransitionTime": timestamp(),
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        report = _Report(body, f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status")
        self._put(report, self._urgent if first else self._queue)
        self._event(pod, "Warning", "FailedScheduling", "Scheduling", message)

    def _event(self, pod: PodInfo, kind: str, reason: str, action: str, note: str) -> None:
        regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event = new_event(names.CONTROLLER, action, regarding, reason, note, warning=kind == "Warning")
        self._put(_Report(event), self._queue)

    def _put(self, report: _Report, queue: deque[_Report]) -> None:
        if self.left >= _MAX_REPORTS:
            metrics.EVENTS.labels("dropped").inc()
            return
        queue.append(report)
        self._ready.release()

    # -- writing ----------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Number of reports not yet sent."""
        return len(self._urgent) + len(self._queue)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_WORKERS):
                group.create_task(self._work(number))

    async def _work(self, number: int) -> None:
        while True:
            while number >= _FEW and self.yield_to():
                await asyncio.sleep(0.02)
            await self._ready.acquire()
            report = (self._urgent or self._queue).popleft()
            wait = 0.2
            for _ in range(_TRIES):
                await self._rate.take()
                try:
                    if report.path:
                        await self._client.send("PATCH", report.path, report.body, content_type=STRATEGIC)
                    else:
                        await self._events.post(report.body)
                except ApiError as error:
                    if error.status != 429 and error.status < 500:
                        metrics.EVENTS.labels("refused").inc()
                        break
                    wait = max(wait, error.retry_after)
                except UnreachableError:
                    pass
                else:
                    metrics.EVENTS.labels("written").inc()
                    break
                await asyncio.sleep(wait)
                wait *= 2
