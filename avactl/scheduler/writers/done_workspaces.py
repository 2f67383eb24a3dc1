"""Workspaces whose editor has ended by itself: their StatefulSets are scaled to 0, which frees their GPUs.

A StatefulSet restarts every container that ends. An editor that ends with exit code 0 was idle, or was shut down by its
user. The scheduler watches all pods, so this needs no other daemon. Nothing is remembered: an end that no replica saw
in time has no effect, and the restarted editor ends once more when it has been idle again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import unix_time_or
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.pod_reporter import PodReporter

STOP_WINDOW_S = 60.0
"""Seconds after the end of an editor in which its workspace is stopped; later, somebody may work in the next one."""


class DoneWorkspaces(ChangeListener):
    """Stops the workspaces whose editor has ended with exit code 0."""

    def __init__(
        self, client: Client, rate: Rate, tables: ClusterTables, reporter: PodReporter, leading: Callable[[], bool]
    ) -> None:
        self._client, self._rate, self._reporter, self._leading = client, rate, reporter, leading
        self._sessions: dict[str, PodInfo] = {}
        """Pods on nodes that stop with their editor, by UID."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By UID of the pod."""
        self._refused: dict[str, str] = {}
        """Ends whose StatefulSets this account may not scale, by UID of the pod."""
        tables.subscribe(self)

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Watch a pod that stops with its editor."""
        if pod.stops_with:
            self._sessions[pod.uid] = pod

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Forget a pod."""
        self._sessions.pop(pod.uid, None)
        self._refused.pop(pod.uid, None)

    def tick(self) -> None:
        """Stop the workspaces whose editor has just ended; those that could not be stopped are tried again."""
        now = self._client.clock.now()
        for uid, pod in self._sessions.items():
            if not pod.done_at or pod.deleting or uid in self._tasks or self._refused.get(uid) == pod.done_at:
                continue
            # The second is for those that ended before this replica started: the kubelet's clock may be another one.
            seen, told = monotonic() - pod.done_seen, now - unix_time_or(0.0, pod.done_at)
            if seen <= STOP_WINDOW_S or -1 <= told <= STOP_WINDOW_S:
                self._tasks[uid] = asyncio.ensure_future(self._stop(pod))

    async def _stop(self, pod: PodInfo) -> None:
        # It is the only pod of its StatefulSet, NAME-0. RBAC allows this account the StatefulSets of workspaces.
        owner, ended = pod.name.removesuffix("-0"), pod.done_at
        path = f"/apis/apps/v1/namespaces/{pod.namespace}/statefulsets/{owner}/scale"
        try:
            await self._rate.take()
            if self._leading():
                await self._client.send("PATCH", path, {"spec": {"replicas": 0}}, content_type=MERGE)
                logs.info("workspace stopped", pod=pod.key)
                note = f"the editor has ended; start it again: kubectl scale statefulset {owner} --replicas=1"
                self._reporter.stopped(pod, "WorkspaceStopped", note)
        except ApiError as error:
            if error.status in (403, 404):
                self._refused[pod.uid] = ended
            logs.warn("workspace not stopped", pod=pod.key, error=str(error))
        except UnreachableError as error:
            logs.warn("workspace not stopped", pod=pod.key, error=str(error))
        finally:
            del self._tasks[pod.uid]
