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

_TAKEN_UP = 30.0
"""Seconds in which a scheduler that runs has begun."""


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
        self._seen: set[str] = set()
        """Pods that were seen nominated, by uid."""
        self._nominees = [pod for pod in unit.waiting if pod.uid in plan.places]

    async def run(self, timeout: float) -> bool:
        """Execute the moves; return True if the job was placed within `timeout` seconds. Raises StoppedError."""
        await self._ask()
        changed = asyncio.Event()
        following = asyncio.ensure_future(self._view.follow(changed.set))
        try:
            async with asyncio.timeout(_TAKEN_UP):
                await self._until(lambda: self._begun() or self._refused(), changed)
            if not self._begun():
                await self._undo()
                raise StoppedError("the cluster has changed meanwhile: run the command again")
            self._tell("the scheduler has started the moves")
            async with asyncio.timeout(timeout):
                await self._until(self._placed, changed)
            return True
        except TimeoutError:
            if self._begun():
                return False
            await self._undo()
            raise StoppedError("no scheduler has started the moves: is `avactl-scheduler` running?") from None
        except asyncio.CancelledError:
            if not self._begun():
                await self._undo()
            raise
        finally:
            following.cancel()

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Mark, then nominate. Each patch names the pod's uid: a replaced pod is not touched."""
        note = f"{preempted_for_message(self._unit)}moved by `avactl defrag` to a node with free capacity"
        preemption = new_preemption(self._nominees)
        try:
            for pod in self._moved:
                self._marked.append(pod)
                await self._patch(pod, disruption_patch(pod, PREEMPTED, note, preemption))
            for pod in self._nominees:
                await self._patch(pod, nomination_patch(pod, self._plan.places[pod.uid], preemption))
        except (ApiError, UnreachableError) as error:
            await self._undo()
            raise StoppedError(str(error)) from None
        except asyncio.CancelledError:
            await self._undo()
            raise

    async def _undo(self) -> None:
        """Take back all that was written, as far as the API server can be reached."""
        patches: list[tuple[PodInfo, Mapping[str, Any]]] = [
            (pod, nomination_patch(pod, None, None)) for pod in self._nominees
        ]
        patches += [(pod, spare_patch(pod)) for pod in self._marked]
        for pod, body in patches:
            try:
                await self._patch(pod, body)
            except ApiError:
                continue
            except UnreachableError as error:
                self._tell(f"not reverted: {error}")
                return

    async def _patch(self, pod: PodInfo, body: Mapping[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        await self._client.send("PATCH", path, body, content_type=STRATEGIC)

    # -- watching ---------------------------------------------------------------------------------------------------

    async def _until(self, there: Callable[[], bool], changed: asyncio.Event) -> None:
        while not there():
            await changed.wait()
            changed.clear()

    def _begun(self) -> bool:
        """Return True once the first moved pod is terminating or gone."""
        return any(self._now(pod) is None or pod.deleting for pod in self._moved)

    def _refused(self) -> bool:
        """Return True once the scheduler has withdrawn a nomination. The first answers may predate the nominations."""
        seen = [found for pod in self._nominees if (found := self._now(pod)) is not None and found.waiting]
        self._seen |= {pod.uid for pod in seen if pod.nominated}
        return any(pod.uid in self._seen and not pod.nominated for pod in seen) or len(seen) < len(self._nominees)

    def _placed(self) -> bool:
        return all((found := self._now(pod)) is not None and bool(found.node) for pod in self._nominees)

    def _now(self, pod: PodInfo) -> PodInfo | None:
        found = self._view.cache.tables.pods.get(pod.key)
        return found if found is not None and found.uid == pod.uid else None

    def nodes(self) -> Sequence[str]:
        """Return the nodes of the job's pods."""
        return sorted({found.node for pod in self._nominees if (found := self._now(pod)) is not None and found.node})
