"""Pods of a gang by what they ask for: the roles that the engine places."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.placement.gang import Gang, Role
from avactl.placement.request import Request
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup


def roles_of(pods: Sequence[PodInfo], requests: dict[str, Request]) -> dict[Request, list[PodInfo]]:
    """Pods by what they ask for."""
    roles: dict[Request, list[PodInfo]] = {}
    for pod in pods:
        roles.setdefault(requests[pod.uid], []).append(pod)
    return roles


def gang_of(
    unit: QueuedPodGroup, pods: Sequence[PodInfo], requests: dict[str, Request]
) -> tuple[Gang, list[list[PodInfo]]]:
    """Pods of a gang for the engine, and the pods of each of its roles."""
    roles = roles_of(pods, requests)
    made = (Role(f"{unit.key}/{number}", request, len(mine)) for number, (request, mine) in enumerate(roles.items()))
    return Gang(tuple(made), unit.within or None), list(roles.values())
