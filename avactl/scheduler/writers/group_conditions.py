"""The condition PodGroupInitiallyScheduled of Kubernetes' PodGroups, as kube-scheduler writes it.

Source: `submitPodGroupAlgorithmResult` and `updatePodGroupCondition` in pkg/scheduler/schedule_one_podgroup.go of
Kubernetes 1.37. It is True once as many pods have a node as the PodGroup asks for, one of the policy `basic`, and stays
so. Until then it tells why they wait, unless they wait for their own kind: kube-scheduler is silent then, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from avactl.contracts.names import INITIALLY_SCHEDULED
from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import timestamp
from avactl.scheduler.cache.pod_group_table import GroupMembers, PodGroupTable
from avactl.scheduler.objects.pod_groups import GroupCondition, PodGroup
from avactl.scheduler.objects.wait_reasons import WaitReason

SCHEDULED, UNSCHEDULABLE, SCHEDULER_ERROR = "Scheduled", "Unschedulable", "SchedulerError"
"""Reasons of the condition."""
MAX_CONCURRENT_REQUESTS = 16
MAX_MESSAGE_CHARS = 1024
_REASONS: Mapping[str, str] = {
    WaitReason.UNSCHEDULABLE: UNSCHEDULABLE,
    WaitReason.QUOTA: UNSCHEDULABLE,
    WaitReason.PREEMPTION: UNSCHEDULABLE,
    WaitReason.UNSUPPORTED: SCHEDULER_ERROR,
    WaitReason.ERROR: SCHEDULER_ERROR,
}
"""Reason of the condition by that of the pods. The others are of pods that kube-scheduler would not look at yet."""


class GroupConditions:
    """Writes the conditions of the PodGroups that have changed, or whose pods have."""

    def __init__(self, client: Client, rate: Rate, groups: PodGroupTable, leading: Callable[[], bool]) -> None:
        self._client, self._rate, self._groups, self._leading = client, rate, groups, leading
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By PodGroup."""

    def tick(self) -> None:
        """Write what is new; while the API server has not answered, a PodGroup waits for the next time."""
        for key in self._groups.changed - self._tasks.keys():
            if len(self._tasks) >= MAX_CONCURRENT_REQUESTS:
                return
            self._groups.changed.discard(key)
            members = self._groups[key]
            condition = None if members is None else wanted_condition(members)
            if members is not None and members.group is not None and condition is not None:
                self._tasks[key] = asyncio.ensure_future(self._write(key, members.group, condition))

    async def _write(self, key: str, group: PodGroup, condition: GroupCondition) -> None:
        namespace, _, name = key.partition("/")
        body = {"metadata": {"uid": group.uid}, "status": {"conditions": [_entry(group, condition)]}}
        path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups/{name}/status"
        try:
            await self._rate.take()
            if self._leading():
                await self._client.send("PATCH", path, body, content_type=STRATEGIC)
        except ApiError as error:
            if error.status == 429 or error.status >= 500:
                self._groups.changed.add(key)
            elif error.status not in (404, 409):
                logs.warn("PodGroup not updated", group=key, error=str(error))
        except UnreachableError:
            self._groups.changed.add(key)
        finally:
            del self._tasks[key]


def wanted_condition(members: GroupMembers) -> GroupCondition | None:
    """Return the condition that a PodGroup should have; None if it has it, or if there is nothing to say."""
    group = members.group
    if group is None or group.started:
        return None
    now, before = timestamp(), group.condition
    if members.ran if not group.size else sum(1 for pod in members.pods.values() if pod.node) >= group.size:
        return GroupCondition("True", SCHEDULED, "", now)
    waiting = [pod for pod in members.pods.values() if pod.waiting and pod.message and pod.wait_reason in _REASONS]
    if not waiting:
        return None
    pod = min(waiting, key=lambda pod: pod.name)
    message = pod.message[:MAX_MESSAGE_CHARS]
    found = GroupCondition("False", _REASONS[pod.wait_reason], message, before.since if before is not None else now)
    return None if found == before else found


def _entry(group: PodGroup, condition: GroupCondition) -> dict[str, object]:
    return {
        "type": INITIALLY_SCHEDULED,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.since,
        "observedGeneration": group.generation,
    }
