"""Carry out a defragmentation plan: mark the pods to move, nominate the waiting ones, and let the scheduler evict.

This uses the scheduler's own preemption (`avactl.scheduler.preemption.preemptor`) from outside: it evicts the marked
pods, reserves the capacity they free for the nominated ones, and places the moved pods elsewhere. Everything written
before the last nomination is reverted on failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from avactl.kube.client import STRATEGIC, ApiError, Client, UnreachableError
from avactl.scheduler.defrag.planner import DefragPlan
from avactl.scheduler.inspection.cluster_view import ClusterView
from avactl.scheduler.objects.pod_info import PREEMPTED, PodInfo
from avactl.scheduler.preemption.attempt import new_preemption, preempted_for_message
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup
from avactl.scheduler.writers.evictor import disruption_patch, nomination_patch, spare_patch

START_TIMEOUT_S = 30.0
"""Time within which a running scheduler starts the moves."""


class StoppedError(Exception):
    """The moves were not started; the message says why. All changes were reverted."""


class DefragExecutor:
    """Executes one defragmentation plan."""

    def __init__(
        self, client: Client, view: ClusterView, unit: QueuedPodGroup, plan: DefragPlan, tell: Callable[[str], None]
    ) -> None:
        self._client, self._view, self._unit, self._plan, self._tell = client, view, unit, plan, tell
        self._moved = [move.pod for move in plan.moves]
        self._marked: list[PodInfo] = []
        self._seen_nominated: set[str] = set()
        """UIDs of pods whose nomination the watch has shown."""
        self._nominees = [pod for pod in unit.waiting if pod.uid in plan.places]

    async def run(self, timeout: float) -> bool:
        """Execute the moves; return True if the job was placed within `timeout` seconds. Raises StoppedError."""
        await self._mark_and_nominate()
        changed = asyncio.Event()
        following = asyncio.ensure_future(self._view.follow(changed.set))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._wait_until(lambda: self._has_begun() or self._is_refused(), changed)
            if not self._has_begun():
                await self._revert()
                raise StoppedError("the cluster has changed meanwhile: run the command again")
            self._tell("the scheduler has started the moves")
            async with asyncio.timeout(timeout):
                await self._wait_until(self._is_placed, changed)
            return True
        except TimeoutError:
            if self._has_begun():
                return False
            await self._revert()
            raise StoppedError("no scheduler has started the moves: is `avactl-scheduler` running?") from None
        except asyncio.CancelledError:
            if not self._has_begun():
                await self._revert()
            raise
        finally:
            following.cancel()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _mark_and_nominate(self) -> None:
        """Mark, then nominate. Each patch names the pod's uid: a replaced pod is not touched."""
        note = f"{preempted_for_message(self._unit)}moved by `avactl defrag` to a node with free capacity"
        preemption = new_preemption(self._nominees)
        try:
            for pod in self._moved:
                self._marked.append(pod)
                await self._patch_status(pod, disruption_patch(pod, PREEMPTED, note, preemption))
            for pod in self._nominees:
                await self._patch_status(pod, nomination_patch(pod, self._plan.places[pod.uid], preemption))
        except (ApiError, UnreachableError) as error:
            await self._revert()
            raise StoppedError(str(error)) from None
        except asyncio.CancelledError:
            await self._revert()
            raise

    async def _revert(self) -> None:
        """Revert all patches, as far as the API server can be reached."""
        patches: list[tuple[PodInfo, Mapping[str, Any]]] = [
            (pod, nomination_patch(pod, None, None)) for pod in self._nominees
        ]
        patches += [(pod, spare_patch(pod)) for pod in self._marked]
        for pod, body in patches:
            try:
                await self._patch_status(pod, body)
            except ApiError:
                continue
            except UnreachableError as error:
                self._tell(f"not reverted: {error}")
                return

    async def _patch_status(self, pod: PodInfo, body: Mapping[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        await self._client.send("PATCH", path, body, content_type=STRATEGIC)

    # -- watching ---------------------------------------------------------------------------------------------------

    async def _wait_until(self, there: Callable[[], bool], changed: asyncio.Event) -> None:
        while not there():
            await changed.wait()
            changed.clear()

    def _has_begun(self) -> bool:
        """Return True once the first moved pod is terminating or gone."""
        return any(self._current_pod(pod) is None or pod.deleting for pod in self._moved)

    def _is_refused(self) -> bool:
        """Return True once the scheduler has withdrawn a nomination. The first answers may predate the nominations."""
        seen = [now for pod in self._nominees if (now := self._current_pod(pod)) is not None and now.waiting]
        self._seen_nominated |= {pod.uid for pod in seen if pod.nominated}
        return any(pod.uid in self._seen_nominated and not pod.nominated for pod in seen) or len(seen) < len(
            self._nominees
        )

    def _is_placed(self) -> bool:
        return all((now := self._current_pod(pod)) is not None and bool(now.node) for pod in self._nominees)

    def _current_pod(self, pod: PodInfo) -> PodInfo | None:
        now = self._view.cache.tables.pods.get(pod.key)
        return now if now is not None and now.uid == pod.uid else None

    def nodes(self) -> Sequence[str]:
        """Return the nodes of the job's pods."""
        return sorted({now.node for pod in self._nominees if (now := self._current_pod(pod)) is not None and now.node})
