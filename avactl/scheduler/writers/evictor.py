"""Evictions through the API server: preemption victims and partial gangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from avactl.contracts.pod_annotations import JOB_IGNORED_FAILURES, PREEMPTION
from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import timestamp
from avactl.scheduler import metrics
from avactl.scheduler.interfaces import Eviction, Victim
from avactl.scheduler.objects.pod_info import DISRUPTED, PREEMPTED, PodInfo
from avactl.scheduler.writers.pod_reporter import PodReporter

MAX_TRIES = 6
MAX_CONCURRENT_REQUESTS = 32
GONE_STATUSES = (404, 409)
"""The pod was deleted, or replaced by another of the same name."""


class Evictor:
    """Executes evictions, sequentially for each unit.

    Pods are deleted, as kube-scheduler does for preemption, not evicted: the eviction API refuses all pods covered by a
    budget, and every gang has a budget against drains. The choice of victims respects budgets.
    `wanted` returns whether a unit still needs its victims evicted; `failed` is called if an eviction fails.
    """

    def __init__(
        self,
        client: Client,
        rate: Rate,
        reporter: PodReporter,
        leading: Callable[[], bool],
        wanted: Callable[[str], bool],
        failed: Callable[[str], None],
    ) -> None:
        self._client, self._rate, self._reporter = client, rate, reporter
        self._leading, self._wanted, self._failed = leading, wanted, failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self._limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    def evict(self, eviction: Eviction) -> None:
        """Nominate, mark and delete. Requests in flight are not sent again."""
        if eviction.unit not in self._busy:
            self._busy.add(eviction.unit)
            self._start_task(self._evict(eviction))

    def clear(self, pods: Sequence[PodInfo]) -> None:
        """Clear the nomination of pending pods."""
        self._start_task(self._nominate(dict.fromkeys(pods), None))

    def spare(self, pods: Sequence[PodInfo]) -> None:
        """Clear the disruption mark of pods that are not evicted."""
        self._start_task(self._spare(pods))

    def _start_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _evict(self, eviction: Eviction) -> None:
        victims = [victim for victim in eviction.victims if not victim.pod.deleting]
        try:
            # The nomination comes first, so that another replica can tell whether to resume the eviction.
            if not await self._nominate(eviction.places, eviction.preemption):
                self._failed(eviction.unit)
                return
            await asyncio.gather(*(self._mark_victim(victim, eviction.preemption) for victim in victims))
            if not (self._wanted(eviction.unit) and self._leading()):
                self._failed(eviction.unit)
                return
            # From here on every victim is deleted: the rest of a gang could not make progress.
            done = await asyncio.gather(*(self._delete_victim(victim) for victim in victims), return_exceptions=True)
            errors = [error for error in done if isinstance(error, BaseException)]
            if errors:
                raise errors[0]
        except (ApiError, UnreachableError) as error:
            logs.warn("room not made", unit=eviction.unit, error=str(error))
            self._failed(eviction.unit)
        finally:
            self._busy.discard(eviction.unit)

    async def _nominate(self, places: Mapping[PodInfo, str | None], preemption: str | None) -> bool:
        """Set or clear the nomination of pods; return True if all of them still exist."""
        before = preemption or ""
        outdated = [
            (pod, node) for pod, node in places.items() if (pod.nominated, pod.preemption) != (node or "", before)
        ]
        bodies = [nomination_patch(pod, node, preemption) for pod, node in outdated]
        try:
            done = await asyncio.gather(
                *(self._patch_status(pod, body) for (pod, _), body in zip(outdated, bodies, strict=True))
            )
        except (ApiError, UnreachableError) as error:
            logs.warn("not nominated", error=str(error))
            return False
        return all(done)

    async def _spare(self, pods: Sequence[PodInfo]) -> None:
        done = await asyncio.gather(
            *(self._patch_status(pod, spare_patch(pod)) for pod in pods), return_exceptions=True
        )
        for error in done:
            if isinstance(error, BaseException):
                logs.warn("mark not removed", error=str(error))

    async def _mark_victim(self, victim: Victim, preemption: str) -> None:
        if victim.pod.preempted_for != preemption:
            await self._patch_status(victim.pod, disruption_patch(victim.pod, PREEMPTED, victim.note, preemption))

    async def _delete_victim(self, victim: Victim) -> None:
        pod = victim.pod
        body = {"preconditions": {"uid": pod.uid}}
        if await self._retry_request(
            "DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body, "application/json"
        ):
            metrics.EVICTIONS.labels(victim.why).inc()
            self._reporter.stopped(pod, "Preempted", victim.note)

    async def _patch_status(self, pod: PodInfo, body: dict[str, Any]) -> bool:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        return await self._retry_request("PATCH", path, body, STRATEGIC)

    async def _retry_request(self, method: str, path: str, body: Any, content_type: str) -> bool:
        """Return True if the pod existed. Raises ApiError and UnreachableError if that stays unknown."""
        wait = 0.1
        async with self._limit:
            for left in reversed(range(MAX_TRIES)):
                await self._rate.take()
                if not self._leading():
                    raise UnreachableError("another replica may be the leader")
                try:
                    await self._client.send(method, path, body, content_type=content_type)
                    return True
                except ApiError as error:
                    if error.status in GONE_STATUSES:
                        return False
                    if not left or (error.status != 429 and error.status < 500):
                        raise
                    wait = max(wait, error.retry_after)
                except UnreachableError:
                    if not left:
                        raise
                await asyncio.sleep(wait)
                wait *= 2
        raise AssertionError


def nomination_patch(pod: PodInfo, node: str | None, preemption: str | None) -> dict[str, Any]:
    """Return the status patch that nominates a pod for a node; None clears the nomination."""
    metadata = {"uid": pod.uid, "annotations": {PREEMPTION.name: preemption}}
    return {"metadata": metadata, "status": {"nominatedNodeName": node}}


def disruption_patch(pod: PodInfo, reason: str, note: str, preemption: str | None = None) -> dict[str, Any]:
    """Return the status patch (DisruptionTarget) that keeps a Job from counting the pod as failed.

    Without the count of earlier preemptions, the Job controller makes the pod anew after 10 s. With it, it would wait
    twice as long each time, for up to 10 minutes.
    """
    condition = {
        "type": DISRUPTED,
        "status": "True",
        "reason": reason,
        "message": note,
        "lastTransitionTime": timestamp(),
    }
    metadata = {"uid": pod.uid, "annotations": {PREEMPTION.name: preemption, JOB_IGNORED_FAILURES.name: None}}
    return {"metadata": metadata, "status": {"conditions": [condition]}}


def spare_patch(pod: PodInfo) -> dict[str, Any]:
    """Return the status patch that reverts `disruption_patch`."""
    condition = {"type": DISRUPTED, "status": "False", "reason": "NotMoved", "message": "no longer being preempted"}
    metadata = {"uid": pod.uid, "annotations": {PREEMPTION.name: None}}
    return {"metadata": metadata, "status": {"conditions": [condition]}}
