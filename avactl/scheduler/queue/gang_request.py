"""Gang requests for the placement engine, and wait groups of units with equal demands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from avactl.hardware.placement.gang import Gang, GangRole
from avactl.hardware.placement.request import Request
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.pod_requirements import PodRequirements
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup


class WaitCause(Enum):
    """The reason why a unit waits."""

    UNSUPPORTED = "unsupported"
    QUOTA = "quota"
    CAPACITY = "capacity"
    NOMINATED = "nominated"
    """Its victims are being evicted."""


class Demand(NamedTuple):
    """The pods that a unit starts with, reduced to what determines whether it fits."""

    gang: bool
    within: str
    members: tuple[tuple[Request, int], ...]


class Likeness(NamedTuple):
    """All that constraints read of a single pod without volumes and ResourceClaims: equal pods have the same nodes."""

    namespace: str
    shape: PodRequirements
    labels: frozenset[tuple[str, str]]
    annotations: frozenset[tuple[str, str]]


class QuotaOwner(NamedTuple):
    """The properties of a pod that decide which quota it counts for and which pods it may preempt."""

    team: str
    rank: tuple[bool, int]
    preemptible: bool
    never_preempts: bool
    member: str


class WaitGroup(NamedTuple):
    """Units that all remain unschedulable as long as one of them is."""

    cause: WaitCause
    what: Hashable
    """A `Demand`, a `Likeness`, unsupported requirements of single pods, or the key of a unit that waits alone.

    With the key of a gang, its pods."""
    owners: frozenset[QuotaOwner] = frozenset()


def constrained_demand(unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> Hashable:
    """Return what units have in common that fit on the same nodes by their constraints; if nothing, a name."""
    pod = pods[0]
    if unit.gang:
        # Others of its pods may fit.
        return unit.key, frozenset(pod.uid for pod in pods)
    return unit.key if pod.volumes or pod.claims else likeness_of(pod)


def likeness_of(pod: PodInfo) -> Likeness:
    """Return what constraints read of a pod without volumes and ResourceClaims."""
    return Likeness(pod.namespace, pod.shape, frozenset(pod.labels.items()), frozenset(pod.annotations.items()))


def roles_of(pods: Sequence[PodInfo], requests: Mapping[str, Request]) -> dict[Request, list[PodInfo]]:
    """Return the pods by request."""
    roles: dict[Request, list[PodInfo]] = {}
    for pod in pods:
        roles.setdefault(requests[pod.uid], []).append(pod)
    return roles


def gang_of(
    unit: QueuedPodGroup, pods: Sequence[PodInfo], requests: Mapping[str, Request]
) -> tuple[Gang, list[list[PodInfo]]]:
    """Return pods of a unit as a gang, and the pods of each of its roles. Equal units are equal gangs."""
    roles = roles_of(pods, requests)
    made = (GangRole(str(number), request, len(mine)) for number, (request, mine) in enumerate(roles.items()))
    return Gang(tuple(made), unit.within or None), list(roles.values())
