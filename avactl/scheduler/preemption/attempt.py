"""Preemption attempts: the request, the search for victims, and the messages for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from avactl.hardware.placement.allocation import MILLI_PER_GPU, Booking
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.quota import TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.interfaces import Victim
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption.candidates import Candidates
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup

MAX_NAMED_WORKLOADS = 3
"""Maximum number of workloads that a message names."""


class PreemptionRequest(NamedTuple):
    """A preemption request: a unit that does not fit."""

    unit: QueuedPodGroup
    pods: Sequence[PodInfo]
    wishes: Sequence[StartRequest]
    place: Callable[[Mask | None], Sequence[Booking] | None]
    """Returns the bookings for its pods in the current state, on the nodes of the mask, without booking them."""
    restricted: bool
    """True if constraints restrict its nodes."""


class Trial:
    """A trial of victims on the cluster cache, within a statement."""

    def __init__(
        self, cache: ClusterCache, statement: Statement, need: PreemptionRequest, works: Candidates, mask: Mask | None
    ) -> None:
        self._cache, self._statement, self._need, self._works, self._mask = cache, statement, need, works, mask
        self.bookings: Sequence[Booking] | None = None

    def enough(self, takes: Sequence[Reclaim]) -> bool:
        """Return True if the unit fits once these pods are evicted."""
        self._statement.evict_only(self._works.victims(takes))
        self.bookings = self._need.place(self._mask)
        return self.bookings is not None

    def near(self, takes: Sequence[Reclaim]) -> list[Reclaim]:
        """Return the reclaims on nodes where the unit would be placed."""
        if not self.enough(takes) or self.bookings is None:
            return list(takes)
        state = self._cache.tables.state
        nodes = {state.names[booking.node] for booking in self.bookings}
        return [
            take for take in takes if any((pod.node or pod.assumed) in nodes for pod in self._works.victims([take]))
        ]


def suitable_models(cache: ClusterCache, need: PreemptionRequest) -> list[str]:
    """Return the GPU models that suit all roles; empty if roles need different models, which is unsupported."""
    asking = [wish.request for wish in need.wishes if wish.request.gpus]
    if not asking:
        return [""]
    named_models = [request.models for request in asking if request.models]
    known_models = {model for model in cache.tables.state.models if model}
    models = set.intersection(*map(set, named_models)) if named_models else known_models
    return sorted(models)


def demand_as_work(need: PreemptionRequest, team: str, model: str) -> TeamWorkload:
    """Return the demand of a pod group as a workload of its team."""
    amounts = [0, 0]
    for wish in need.wishes:
        for index in range(2):
            amounts[index] += len(wish.pods) * wish.request.amounts[index]
    pods = need.pods
    return TeamWorkload(
        ("wanted", need.unit.key),
        team,
        1,
        sum(len(wish.pods) * wish.request.total_milli for wish in need.wishes),
        model,
        priority=max(pod.priority for pod in pods),
        serving=any(pod.serving for pod in pods),
        amounts=tuple(amounts),
        guaranteed_only=not all(pod.preemptible for pod in pods),
    )


def new_victim(unit: QueuedPodGroup, team: str, pod: PodInfo, take: Reclaim, works: Candidates) -> Victim:
    """Return a victim with the reason for its eviction."""
    giver = works.ledger.works[take.key].team
    if giver != team:
        return Victim(
            pod, "quota-reclaim", f"{preempted_for_message(unit)}team {giver} borrowed GPUs guaranteed to team {team}"
        )
    if take.why == "surplus":
        return Victim(pod, "elastic", f"{preempted_for_message(unit)}its gang can run without it")
    return Victim(pod, "priority", f"{preempted_for_message(unit)}the preemptor has a higher priority")


def describe_reclaims(unit: QueuedPodGroup, takes: Sequence[Reclaim], works: Candidates) -> str:
    """Render `8 more GPUs when job vision/x ends by quota reclaim`."""
    namespace = next(iter(unit.pods.values())).namespace
    parts = []
    for take in takes[:MAX_NAMED_WORKLOADS]:
        work, pod = works.ledger.works[take.key], works.pods[take.key][0]
        name = pod.gang or pod.key
        name = name.removeprefix(f"{namespace}/") if pod.namespace == namespace else name
        gpus = take.members * work.gpus / MILLI_PER_GPU
        what = f"{gpus:g} more GPU{'' if gpus == 1 else 's'} when" if gpus else "capacity when"
        why = "priority" if take.why == "priority" else "quota reclaim"
        verb = "ends" if take.whole else "shrinks"
        parts.append(f"{what} {'job' if pod.gang else 'pod'} {name} {verb} by {why}")
    more = len(takes) - MAX_NAMED_WORKLOADS
    return ", ".join([*parts, *([f"and {more} others"] if more > 0 else [])])


def title(unit: QueuedPodGroup) -> str:
    """Return the display name of a unit."""
    return unit.key if unit.gang else next(iter(unit.pods.values())).key


def preempted_for_message(unit: QueuedPodGroup) -> str:
    """Return the prefix of messages in a victim's condition."""
    return f"Preempted for {title(unit)}: "


def new_preemption(pods: Sequence[PodInfo]) -> str:
    """Return a new preemption ID for these pods: the UID of the first pod, and the current time."""
    return f"{pods[0].uid}/{time.time_ns() // 1_000_000:x}"
