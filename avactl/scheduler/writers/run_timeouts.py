"""Timeouts of jobs: the clock of a pod starts when it is bound, so waiting for GPUs does not count.

The pod gets the condition `names.TIMED_OUT`, and a moment later the kubelet ends it by its `activeDeadlineSeconds`.
Without the condition its Job would count a failure and try again; with it the Job fails (`podFailurePolicy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from avactl.contracts import names
from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import timestamp, unix_time
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.objects.pod_info import PodInfo


class RunTimeouts(ChangeListener):
    """Marks pods that have run for their timeout."""

    def __init__(self, client: Client, rate: Rate, tables: ClusterTables, leading: Callable[[], bool]) -> None:
        self._client, self._rate, self._leading = client, rate, leading
        self._limited: dict[str, PodInfo] = {}
        """Pods on nodes that have a timeout, by UID."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By UID of the pod."""
        tables.subscribe(self)

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Watch a pod that has a timeout."""
        if pod.timeout:
            self._limited[pod.uid] = pod

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Forget a pod."""
        self._limited.pop(pod.uid, None)

    def tick(self) -> None:
        """Mark all pods whose time is up; pods that could not be marked are tried again."""
        now = self._client.clock.now()
        for pod in self._limited.values():
            runs = pod.started and not (pod.timed_out or pod.ended or pod.deleting)
            if runs and pod.uid not in self._tasks and now - unix_time(pod.started) > pod.timeout:
                self._tasks[pod.uid] = asyncio.ensure_future(self._mark_timed_out(pod))

    async def _mark_timed_out(self, pod: PodInfo) -> None:
        try:
            await self._patch_condition(pod)
        except (ApiError, UnreachableError) as error:
            logs.warn("pod not marked as timed out", pod=pod.key, error=str(error))
        finally:
            del self._tasks[pod.uid]

    async def _patch_condition(self, pod: PodInfo) -> None:
        condition = {
            "type": names.TIMED_OUT,
            "status": "True",
            "reason": "DeadlineExceeded",
            "message": f"the pod ran for its timeout of {pod.timeout} s",
            "lastTransitionTime": timestamp(),
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        await self._rate.take()
        if self._leading():
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
            await self._client.send("PATCH", path, body, content_type=STRATEGIC)
            logs.info("pod timed out", pod=pod.key, seconds=pod.timeout)
