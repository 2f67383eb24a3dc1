"""The scheduling cycle: turn a unit of the queue into bindings, or a reason why it is pending."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from time import monotonic
from typing import NamedTuple

from avactl.contracts.pod_annotations import WITHIN
from avactl.hardware.placement.allocation import Booking
from avactl.hardware.placement.diagnosis import SMALL
from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.hardware.placement.request import Request
from avactl.kube import logs
from avactl.kube.timestamps import unix_time_or
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.cycle.pending_reasons import PendingReasons
from avactl.scheduler.cycle.placer import Placer, StartAttempt
from avactl.scheduler.cycle.starter import PodStarter
from avactl.scheduler.interfaces import BindingSink, EvictionSink, StatusSink
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, ReportedWaitError, RuleError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.preemption.attempt import PreemptionRequest
from avactl.scheduler.preemption.candidates import BudgetChecker
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.preemption.preemptor import Preemptor
from avactl.scheduler.queue.failed_demands import FailedDemands
from avactl.scheduler.queue.gang_domains import gang_domains
from avactl.scheduler.queue.gang_request import (
    Demand,
    QuotaOwner,
    WaitCause,
    WaitGroup,
    constrained_demand,
    gang_of,
    likeness_of,
    roles_of,
)
from avactl.scheduler.queue.owned_pod_group import OwnedPodGroup
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue, is_partial
from avactl.scheduler.queue.team_heads import TeamHeads

OVERTAKEN_S = 600.0
"""Seconds after which a gang that waits is told that younger pods have started."""
OVERTAKEN = (
    "younger pods that need less have started before it, because nothing is held for it: with a higher priority it "
    "preempts those of its team"
)
MAX_ROLES = 64
"""Maximum number of different requests in one gang: the search over domains goes through each of them."""
MAX_CHOICE = 512
"""Most waiting pods of a PodGroup among which those are searched that fit; of more, the first ones start."""
MAX_CHOICES, CHOICE_S = 16, 0.1
"""Sets of them that are tried, of at most as many kinds of pods, and seconds for which."""


class Blocked(NamedTuple):
    """Pods that must wait."""

    message: str
    group: WaitGroup
    """Wait group of the unit."""
    reason: WaitReason
    """Reason of the pods' conditions."""
    preemption: PreemptionRequest | None = None
    """Request for preemption; None if preemption cannot help."""


class SchedulingCycle:
    """Schedules one unit at a time, synchronously, so the cache does not change meanwhile. A pod is a gang of one."""

    def __init__(
        self,
        cache: ClusterCache,
        queue: SchedulingQueue,
        constraints: ConstraintSet,
        binder: BindingSink,
        reporter: StatusSink,
        evictor: EvictionSink | None = None,
        budgets: BudgetChecker | None = None,
        preemption_share: float = 1.0,
        clock: Callable[[], float] = time.time,
        hold_after: float = 0.0,
        waits_for_machines: bool = False,
    ) -> None:
        """Without an evictor nothing is preempted; without budgets no service is protected.

        `preemption_share`: largest share of time that failed preemption attempts may take; `clock`: that of the API
        server, in Unix seconds; `hold_after`: seconds after which younger pods of a team wait behind a large unit;
        `waits_for_machines`: nobody is preempted for pods that fit on machines on their way.
        """
        self._clock, self._heads = clock, TeamHeads(hold_after)
        self.cache, self.queue, self.constraints, self.reporter = cache, queue, constraints, reporter
        self._placer = Placer(cache, constraints)
        self._reasons = PendingReasons(cache, self._placer)
        self._starter = PodStarter(cache, binder)
        self._failed = FailedDemands()
        self._youngest_start = ""
        """Creation time of the youngest pod with GPUs that has started."""
        self._learnt: set[str] = set()
        """UIDs of the pods that are part of the expected workload."""
        self.preemptor = Preemptor(
            cache,
            queue,
            budgets or DisruptionBudgets(),
            evictor,
            self._placer.place_pod,
            preemption_share,
            clock,
            waits_for_machines,
        )

    def sync(self) -> None:
        """Activate the units that freed resources may fit. Call it after changes, before taking the next unit."""
        self.constraints.sync()
        self.preemptor.sync()
        for team in self._heads.end(self._clock(), self._waits):
            self.cache.tables.waits.occurred(_turn_event(team))

    def _waits(self, key: str) -> bool:
        unit = self.queue.units.get(key)
        return unit is not None and bool(unit.waiting)

    def forget(self, pod: PodInfo) -> None:
        """Forget a removed pod."""
        self._learnt.discard(pod.uid)
        self._failed.forget(pod.uid)
        self.preemptor.forget(pod)

    def clear(self) -> None:
        """Reset after a rebuild of the state."""
        self._failed.clear()
        self._reasons.clear()
        self.preemptor.reset()

    # -- one decision -----------------------------------------------------------------------------------------------

    def decide(self, unit: QueuedPodGroup) -> None:
        """Place a unit, or report why it is unschedulable and let it wait."""
        began = monotonic()
        self.preemptor.sync()
        with self.preemptor.own_places_released(unit):
            self._decide(unit)
        metrics.DECISION_SECONDS.observe(monotonic() - began)

    def _decide(self, unit: QueuedPodGroup) -> None:
        if isinstance(unit, OwnedPodGroup):
            self._decide_owned(unit)
            return
        waiting = sorted(unit.waiting, key=lambda pod: (pod.index, pod.name)) if unit.gang else unit.waiting
        missing = unit.missing if unit.gang else 1
        if not waiting or missing > len(waiting):
            self.queue.suspend(unit)
        elif missing > 0:
            if self._start(unit, self._starting_pods(unit, waiting, missing)) and len(waiting) > missing:
                # An elastic gang grows beyond its size only after all units that have not started yet.
                self.queue.push(unit)
        elif self.queue.retried != self.cache.tables.change_epoch:
            # Units that have not started yet get the first turn on what was freed since the last retry.
            self.queue.mark_unschedulable(unit, WaitGroup(WaitCause.CAPACITY, unit.key))
        elif [pod for pod in waiting if not self._grow(unit, pod)]:  # as many as fit, and without preemption
            self.queue.mark_unschedulable(unit, WaitGroup(WaitCause.CAPACITY, unit.key))
        else:
            self.queue.suspend(unit)

    def _decide_owned(self, unit: OwnedPodGroup) -> None:
        """Start the gang of an object of another controller, or those of its pods that fit."""
        batches = unit.batches()
        first = unit.resume % len(batches) if batches else 0
        batches, unit.resume = [*batches[first:], *batches[:first]], 0
        tried = {pod.uid for batch in batches for pod in batch}
        self.queue.suspend(unit)
        began, failed, started = monotonic(), set[Hashable](), 0
        for number, batch in enumerate(batches):
            alike: Hashable = tuple(
                pod.uid if pod.volumes or pod.claims else (likeness_of(pod), self.cache.quotas.owner(pod))
                for pod in batch
            )
            if alike in failed:
                continue
            if self._start(unit, batch, batch):
                started += 1
            else:
                failed.add(alike)
                if self.preemptor.has_nomination(unit.key):
                    return  # the places that it waits for are those of this batch
            if monotonic() - began > CHOICE_S:
                # Others get their turn; what has not been tried is tried first after the next change, or at once if
                # something has started.
                unit.resume = first + number + 1 - started
                if started:
                    self.queue.push(unit)
                return
        if not unit.entry and any(pod.uid not in tried for pod in unit.waiting) and unit.batches():
            self.queue.push(unit)  # its gang runs: the others follow, each by itself

    def _starting_pods(self, unit: QueuedPodGroup, waiting: Sequence[PodInfo], missing: int) -> Sequence[PodInfo]:
        """Return the pods with which a unit starts: the first of them, or any that fit if its PodGroup has others."""
        first = waiting[:missing]
        if unit.pod_group is None or missing == len(waiting) or len(waiting) > MAX_CHOICE:
            return first
        if unit.within and unit.within not in self.cache.tables.levels:
            return first
        kinds: dict[Hashable, list[PodInfo]] = {}
        for pod in waiting:
            kinds.setdefault(pod.uid if pod.volumes or pod.claims else pod.shape, []).append(pod)
        if len(kinds) == 1 or len(kinds) > MAX_ROLES:
            return first
        began = monotonic()
        greedy = self._placer.first_that_fit(unit, waiting, missing, began + CHOICE_S)
        choices = _choices(list(kinds.values()), missing) if len(kinds) <= MAX_CHOICES else iter(())
        for pods in chain([greedy], islice(choices, MAX_CHOICES)):
            if pods and self._placer.fits(unit, pods):
                return pods
            if monotonic() - began > CHOICE_S:
                break
        return first

    def _start(self, unit: QueuedPodGroup, pods: Sequence[PodInfo], told: Sequence[PodInfo] | None = None) -> bool:
        """Start all of the pods, or none. `told`: pods that are told why; all that wait by default."""
        try:
            placement = self._place(unit, pods)
        except NotYetError as error:
            report = self.reporter.unschedulable if isinstance(error, ReportedWaitError) else self.reporter.not_yet
            for pod in told or unit.waiting:
                report(pod, str(error), error.reason)
            self.queue.suspend(unit)
            self.cache.tables.waits.wait_for(error.event, unit.key)
            return False
        except RuleError as error:
            placement = Blocked(str(error), WaitGroup(WaitCause.CAPACITY, unit.key), error.reason)
        if isinstance(placement, Blocked):
            self._wait(placement, unit, told or unit.waiting)
            return False
        group, unit.group = unit.group, None
        self._starter.start(pods, placement)
        if any(booking.gpus for booking in placement):
            self._youngest_start = max(self._youngest_start, *(pod.created for pod in pods))
        if unit.gang:
            nodes = len({booking.node for booking in placement})
            logs.info("gang placed", gang=unit.key, pods=len(pods), nodes=nodes)
        if group is not None:
            self.queue.activate_next(group)
        return True

    def _wait(self, blocked: Blocked, unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> None:
        """Preempt others where that helps, report the reason, and let the unit wait."""
        message, reason, group, previous_group = blocked.message, blocked.reason, blocked.group, unit.group
        nominated = False
        if blocked.preemption is not None:
            message = self.preemptor.preempt(blocked.preemption, message, group)
            nominated = self.preemptor.has_nomination(unit.key)
        if nominated:
            group, reason = WaitGroup(WaitCause.NOMINATED, unit.key), WaitReason.PREEMPTION
        elif blocked.group.cause is WaitCause.CAPACITY and self._is_overtaken(pods):
            message = f"{message}; {OVERTAKEN}"
        if isinstance(unit, OwnedPodGroup) and not unit.known:
            message = f"{message}; placed one by one, because the scheduler does not know {quote(unit.key)}"
        metrics.DECISIONS.labels("unschedulable").inc(len(pods))
        for pod in pods:
            self.reporter.unschedulable(pod, message, reason)
        self.queue.mark_unschedulable(unit, group)
        if nominated and previous_group is not None and previous_group != group:
            self.queue.activate_next(previous_group)

    def _is_overtaken(self, pods: Sequence[PodInfo]) -> bool:
        """Return True if pods with GPUs that start together have waited long, and younger ones have started."""
        return (
            len(pods) > 1
            and monotonic() - min(pod.seen for pod in pods) > OVERTAKEN_S
            and min(pod.created for pod in pods) < self._youngest_start
            and any(self.cache.claims.concern(pod) or self.cache.requests.gpu_count(pod.shape) for pod in pods)
        )

    # -- placement --------------------------------------------------------------------------------------------------

    def _place(self, unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> Sequence[Booking] | Blocked:
        """Return a booking for each of the pods, not booked yet, or why they must wait.

        Raises RuleError, and NotYetError for an expected event.
        """
        self.constraints.check_ready(pods)
        tables = self.cache.tables
        within = unit.within if unit.gang else ""
        if within and within not in tables.levels:
            known_levels = ", ".join(tables.levels) or "none"
            message = f"annotation {WITHIN.name}: `{quote(within)}` is not a level of the cluster ({known_levels})"
            return Blocked(message, WaitGroup(WaitCause.UNSUPPORTED, unit.key), WaitReason.UNSUPPORTED)
        try:
            requests = {pod.uid: self._placer.request_of(pod) for pod in pods}
        except UnsupportedError as error:
            by_itself = unit.gang or pods[0].claims
            group = WaitGroup(WaitCause.UNSUPPORTED, unit.key if by_itself else pods[0].shape)
            return Blocked(str(error), group, error.reason)
        self._check_turn(unit, pods, requests)
        wishes = [StartRequest(request, members) for request, members in roles_of(pods, requests).items()]
        if len(wishes) > MAX_ROLES:
            message = f"its gang has {len(wishes)} kinds of pods with different requests; the limit is {MAX_ROLES}"
            return Blocked(message, WaitGroup(WaitCause.UNSUPPORTED, unit.key), WaitReason.UNSUPPORTED)
        exceeded, models = self.cache.quotas.admit(wishes)
        nodes = None if unit.gang else self.constraints.filter_nodes(pods[0])
        restricted = any(map(self.constraints.restrict, pods)) if nodes is None else nodes.mask is not None
        attempt = StartAttempt(unit, pods, requests, nodes, restricted)
        equal_demand = Demand(unit.gang, within, tuple((wish.request, len(wish.pods)) for wish in wishes))
        shared = not restricted and len(pods) >= unit.size and not (unit.owned and len(pods) == 1)
        tried: Hashable = equal_demand if shared else constrained_demand(unit, pods)
        # Other pods of an owned unit may wait for something else.
        demand: Hashable = constrained_demand(unit, pods) if unit.owned else tried
        if exceeded:
            plain = not (restricted or any(map(self.cache.claims.concern, pods)))
            small = plain and self.cache.requests.exceeds_cluster(gang_of(unit, pods, requests)[0])
            message = f"{exceeded}; {SMALL}" if small else str(exceeded)
            equal = demand if unit.gang else equal_demand
            return self._block(attempt, wishes, models, message, WaitCause.QUOTA, equal)
        # Where quotas permit all GPU models, the owners of pods do not matter for the fit.
        fit: Hashable = tried if models is None else (tried, self._owners(pods))
        known = None if self.preemptor.sees_own_places else self._failed.reason(fit, tables.change_epoch)
        if known is not None:
            return self._block(attempt, wishes, models, known, WaitCause.CAPACITY, demand)
        for pod in pods:
            self._learn(pod, requests[pod.uid])
        bookings = self._placer.place(attempt, models)
        if bookings is not None:
            return bookings
        message = self._reasons.explain_unit(attempt, models)
        self._starter.deallocate_claims(pods)
        self._failed.record(fit, tables.change_epoch, message)
        return self._block(attempt, wishes, models, message, WaitCause.CAPACITY, demand)

    def _block(
        self,
        attempt: StartAttempt,
        wishes: Sequence[StartRequest],
        models: Mask | None,
        message: str,
        cause: WaitCause,
        demand: Hashable,
    ) -> Blocked:
        """Return the result for pods that fit nowhere, but may after a preemption."""
        unit, pods = attempt.unit, attempt.pods
        if cause is WaitCause.CAPACITY:
            self._hold_up_younger(attempt)
        # Evictions change the feasible nodes of a single pod.
        retry = attempt._replace(nodes=None)

        def place(mask: Mask | None) -> Sequence[Booking] | None:
            try:
                # The plan for a single pod counts what its quota permits by itself.
                return self._placer.place(retry, intersect_masks(models, mask) if unit.gang else mask)
            except RuleError:
                return None

        preemption: PreemptionRequest | None = PreemptionRequest(
            unit, pods, wishes, place, attempt.restricted, machine_helps=cause is WaitCause.CAPACITY
        )
        if isinstance(unit, OwnedPodGroup) and not all(map(unit.needs_now, pods)):
            preemption = None  # two objects that grow would take the same machine from each other for ever
        if len({self.cache.quotas.member(pod) for pod in pods}) > 1:
            preemption = None  # a plan counts the GPUs of one member
        reason = WaitReason.QUOTA if cause is WaitCause.QUOTA else WaitReason.UNSCHEDULABLE
        return Blocked(message, WaitGroup(cause, demand, self._owners(pods)), reason, preemption)

    def _hold_up_younger(self, attempt: StartAttempt) -> None:
        """Have younger pods of the team wait behind a unit that needs more than one GPU and has waited long."""
        unit, pods, requests = attempt.unit, attempt.pods, attempt.requests
        team, now = self.cache.quotas.team(pods[0]), self._clock()
        created = min(pod.created for pod in pods)
        if sum(request.gpus for request in requests.values()) < 2 or not self._heads.may_begin(
            team, unix_time_or(now, created), now
        ):
            return
        if not self.cache.requests.exceeds_cluster(gang_of(unit, pods, requests)[0]):
            each = [request.models for request in requests.values() if request.gpus]
            models = frozenset[str]().union(*each) if all(each) else frozenset[str]()
            self._heads.begin(team, unit.key, list(pods), models, now)

    def _check_turn(self, unit: QueuedPodGroup, pods: Sequence[PodInfo], requests: Mapping[str, Request]) -> None:
        """Return if no older unit of the team has waited long for GPUs. Raises NotYetError."""
        team = self.cache.quotas.team(pods[0])
        head = self._heads.get(team)
        models = [requests[pod.uid].models for pod in pods if requests[pod.uid].gpus]
        if head is None or head.unit == unit.key or not models or (unit.gang and is_partial(unit)):
            return
        every = frozenset[str]().union(*models) if all(models) else frozenset[str]()
        if head.precedes(max(pod.rank for pod in pods), min(pod.created for pod in pods), every):
            message = f"waits behind {quote(head.title)}, which is older, needs more and has waited long"
            raise NotYetError(message, _turn_event(team), WaitReason.TURN)

    def _owners(self, pods: Sequence[PodInfo]) -> frozenset[QuotaOwner]:
        return frozenset(map(self.cache.quotas.owner, pods))

    def _learn(self, pod: PodInfo, request: Request) -> None:
        """Add a pod to the expected workload, once."""
        if pod.uid not in self._learnt:
            self._learnt.add(pod.uid)
            self.cache.tables.scorer.learn(request)

    # -- growth -----------------------------------------------------------------------------------------------------

    def _grow(self, unit: QueuedPodGroup, pod: PodInfo) -> bool:
        """Start a pod that an elastic gang has beyond its size, if it fits."""
        try:
            self.constraints.check_ready([pod])
            request = self._placer.request_of(pod)
            nodes = self.constraints.filter_nodes(pod)
            self._check_turn(unit, [pod], {pod.uid: request})
        except RuleError as error:
            self.reporter.unschedulable(pod, str(error), WaitReason.GROWTH)
            return False
        if unit.within and unit.within not in self.cache.tables.levels:
            message = f"the gang is running; additional pod: `{quote(unit.within)}` is not a level of the cluster"
            self.reporter.unschedulable(pod, message, WaitReason.UNSUPPORTED)
            return False
        exceeded, models = self.cache.quotas.admit([StartRequest(request, [pod])])
        if exceeded:
            self.reporter.unschedulable(pod, f"the gang is running; additional pod: {exceeded}", WaitReason.GROWTH)
            return False
        tables = self.cache.tables
        nodes = self._reasons.within_quota(nodes, models)
        domains = gang_domains(tables.state, unit)
        masks = tables.trusted_first(pod, domains)
        if len(masks) > len(domains) and not self._fits(pod, request, intersect_masks(nodes.mask, masks[-1])):
            masks = []
        for domain in masks:
            choice = self._placer.best_choice(pod, request, intersect_masks(nodes.mask, domain))
            if choice is not None:
                self._starter.start([pod], [choice.booking(request)])
                return True
        reason = self._reasons.explain_pod(pod, request, nodes)
        self.reporter.unschedulable(pod, f"the gang is running; additional pod: {reason}", WaitReason.GROWTH)
        return False

    def _fits(self, pod: PodInfo, request: Request, mask: Mask | None) -> bool:
        return self._placer.best_choice(pod, request, mask) is not None


def _turn_event(team: str) -> str:
    """Return the event of the end of a hold."""
    return f"turn {team}"


def _choices(kinds: Sequence[Sequence[PodInfo]], count: int) -> Iterator[list[PodInfo]]:
    """Yield the sets of so many pods that differ in their kinds, those with most pods of the first kinds first."""
    if not kinds or count > sum(map(len, kinds)):
        return
    mine, others = kinds[0], kinds[1:]
    for number in range(min(count, len(mine)), -1, -1):
        if number == count:
            yield list(mine[:number])
        else:
            yield from ([*mine[:number], *rest] for rest in _choices(others, count - number))
