"""Preemption attempts: the request, the search for victims, and the messages for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from avactl.hardware.placement.allocation import MILLI_PER_GPU, Booking
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.quota import TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim
from avactl.hardware.placement.request import Request
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
    machine_helps: bool = False
    """True if it would start on one more machine: its quotas permit it."""


class FreedAmounts:
    """Amounts and GPUs that evictions free by node, as a bound: where they are too little, a pod cannot be placed.

    It holds for a pod without claims whose nodes no constraint restricts. Looking at thousands of pods is much cheaper
    than evicting them in a statement.
    """

    def __init__(self, cache: ClusterCache, request: Request, mask: Mask | None) -> None:
        self._state, self._request, self._mask = cache.tables.state, request, mask
        self._wanted = [index for index, amount in enumerate(request.amounts) if amount]
        self._lacking: dict[int, list[int] | None] = {}
        """Amounts that a pod lacks by slot, then GPU milli; None if it may not be placed there."""
        self._freed: dict[PodInfo, tuple[int, list[int] | None] | None] = {}
        """Slot of each pod that holds resources, and what it frees there; None: unknown, as it has claims."""
        self._left: dict[int, list[int]] = {}
        """Amounts that are still lacking by slot after the evictions that `evict` has counted."""

    def evict(self, pods: Sequence[PodInfo]) -> bool:
        """Count further evictions, some perhaps twice; return True if the pod may fit on one of their nodes."""
        fits = False
        for pod in pods:
            fits |= self._subtract(self._left, pod)
        return fits

    def relevant(self, pods: Sequence[PodInfo]) -> list[PodInfo]:
        """Return those of some victims that are on nodes where the pod may fit without all of them."""
        left: dict[int, list[int]] = {}
        for pod in pods:
            self._subtract(left, pod)
        slots = {slot for slot, lacking in left.items() if max(lacking) <= 0}
        return [pod for pod in pods if (freed := self._freed[pod]) is not None and freed[0] in slots]

    def _subtract(self, left: dict[int, list[int]], pod: PodInfo) -> bool:
        """Subtract what a pod frees from what is lacking on its node; return True if nothing is."""
        try:
            freed = self._freed[pod]
        except KeyError:
            freed = self._freed[pod] = self._freed_by(pod)
        if freed is None:
            return False
        slot, amounts = freed
        lacking = left.get(slot)
        if lacking is None:
            base = self._lacking[slot]
            if base is None:
                return False
            lacking = left[slot] = list(base)
        if amounts is None:
            lacking[:] = [0] * len(lacking)
        else:
            for index, amount in enumerate(amounts):
                lacking[index] -= amount
        return max(lacking) <= 0

    def _freed_by(self, pod: PodInfo) -> tuple[int, list[int] | None] | None:
        booking = self._state.bookings.get(pod.uid)
        slot = booking.node if booking is not None else self._state.slots.get(pod.assumed or pod.node)
        if slot is None or (booking is None and not pod.claims):
            return None
        if slot not in self._lacking:
            self._lacking[slot] = self._lacking_on(slot)
        if booking is None or pod.claims:
            return slot, None
        milli = booking.milli * booking.gpus.bit_count()
        return slot, [*(booking.amounts[index] for index in self._wanted), milli]

    def _lacking_on(self, slot: int) -> list[int] | None:
        state, request = self._state, self._request
        if self._mask is not None and not self._mask[slot]:
            return None
        if request.nodes is not None and not state.allowed[request.nodes][slot]:
            return None
        free = state.free[slot].tolist()
        gpus = request.total_milli - int(state.gpu_total[slot]) if request.gpus else 0
        return [*(request.amounts[index] - free[index] for index in self._wanted), gpus]


class Trial:
    """A trial of victims on the cluster cache, within a statement."""

    def __init__(
        self, cache: ClusterCache, statement: Statement, need: PreemptionRequest, works: Candidates, mask: Mask | None
    ) -> None:
        self._cache, self._statement, self._need, self._works, self._mask = cache, statement, need, works, mask
        self.bookings: Sequence[Booking] | None = None
        self._tried: Sequence[Reclaim] | None = None
        bounded = not (need.unit.gang or need.restricted or cache.claims.concern(need.pods[0]))
        self._freed = FreedAmounts(cache, need.wishes[0].request, mask) if bounded else None

    @property
    def hopeful(self) -> Callable[[Reclaim], bool] | None:
        """Return a function that is called with one reclaim after the other: False while all so far free no place.

        None if that takes a trial.
        """
        freed = self._freed
        return None if freed is None else lambda take: freed.evict(self._works.victims([take]))

    def enough(self, takes: Sequence[Reclaim]) -> bool:
        """Return True if the unit fits once these pods are evicted."""
        if takes != self._tried:
            victims = self._works.victims(takes)
            self._statement.evict_only(victims if self._freed is None else self._freed.relevant(victims))
            self.bookings, self._tried = self._need.place(self._mask), list(takes)
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


def demand_as_work(cache: ClusterCache, need: PreemptionRequest, team: str, model: str) -> TeamWorkload:
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
        member=cache.quotas.member(pods[0]),
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
