"""The scheduling cycle: turn a unit of the queue into bindings, or a reason why it is pending."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import monotonic
from typing import NamedTuple

from avactl.contracts.pod_annotations import JOB_INDEX, WITHIN
from avactl.hardware.placement.allocation import Booking
from avactl.hardware.placement.diagnosis import SMALL, gang_message, pod_message, short, why_gang, why_pod
from avactl.hardware.placement.gang import Gang, Member, Role, contiguous, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Choice
from avactl.kube import logs
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.data_locality import DataLocality
from avactl.scheduler.cache.dataset_gate import DatasetGate, GateError
from avactl.scheduler.cache.job_gate import JobGate
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.cache.tables import Mask
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.cache.volume_binding import VolumeBinding
from avactl.scheduler.interfaces import BindingSink, BindRequest, EvictionSink, StatusSink
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, RuleError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption.attempt import PreemptionRequest
from avactl.scheduler.preemption.candidates import BudgetChecker
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.preemption.preemptor import Preemptor
from avactl.scheduler.queue.gang_domains import gang_domains, narrower, preferring
from avactl.scheduler.queue.gang_request import Demand, QuotaOwner, WaitCause, WaitGroup, gang_of, roles_of
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue

_KNOWN = 10_000
"""Requests of which it is remembered that they fit nowhere."""
_ROLES = 64
"""Kinds of pods of one gang: the search over domains goes through each of them."""
_RANK_LABELS = (JOB_INDEX.name, "apps.kubernetes.io/pod-index")
"""Labels that differ between equal pods of a gang."""
_REASONS = 4
"""Reasons of node sets that are named."""


class Placed(NamedTuple):
    """The result for pods that fit."""

    bookings: Sequence[Booking]
    """Proposed booking of each pod, in the order of the pods; not booked yet."""


class Blocked(NamedTuple):
    """The result for pods that must wait."""

    reason: str
    group: WaitGroup
    """Wait group of the unit."""
    preemption: PreemptionRequest | None = None
    """Request for preemption; None if preemption cannot help."""


class _Partly(NamedTuple):
    """The first pods of a gang that fit one after the other."""

    bookings: Sequence[Booking]
    reason: str = ""
    """Why the next does not; empty: all fit."""


class _Attempt(NamedTuple):
    """Pods of a unit that must start together."""

    unit: QueuedPodGroup
    pods: Sequence[PodInfo]
    requests: dict[str, Request]
    """By uid."""
    special: bool
    """True if other pods, volumes or claims restrict the nodes."""


class SchedulingCycle:
    """Schedules one unit at a time, synchronously, so the cache does not change meanwhile. A pod is a gang of one."""

    def __init__(
        self,
        cache: ClusterCache,
        queue: SchedulingQueue,
        binder: BindingSink,
        reporter: StatusSink,
        volumes: VolumeBinding,
        evictor: EvictionSink | None = None,
        budgets: BudgetChecker | None = None,
        share: float = 1.0,
        gate: DatasetGate | None = None,
        jobs: JobGate | None = None,
    ) -> None:
        """Without an evictor nobody gives way to others. Budgets say which services are spared; without: none.

        At most a `share` of all time is spent on failed preemption attempts.
        """
        self.cache, self.queue, self.binder, self.reporter, self.volumes = cache, queue, binder, reporter, volumes
        self.preemptor = Preemptor(cache, queue, budgets or DisruptionBudgets(), evictor, self._choose, share)
        self._gates: list[JobGate | DatasetGate] = [each for each in (jobs, gate) if each is not None]
        self._locality = None if gate is None else DataLocality(cache.tables, gate)
        self._full: dict[Hashable, tuple[int, str]] = {}
        """Demands that fitted nowhere: change epoch of the attempt, and reason."""
        self._learnt: set[str] = set()
        self._told: tuple[tuple[int, int, int], dict[Request, str]] = ((0, 0, 0), {})
        """Why requests that may go anywhere fit nowhere, and how far everything was then."""

    def sync(self) -> None:
        """Activate the units that freed resources may fit. Call it after changes, before taking the next unit."""
        self.cache.topology.drop_unused()
        self.preemptor.sync()

    def decide(self, unit: QueuedPodGroup) -> None:
        """Place a unit, or report why it is unschedulable and let it wait."""
        began = monotonic()
        self.preemptor.sync()
        if len(self._full) > _KNOWN:
            self._full.clear()
        with self.preemptor.own(unit):
            self._decide(unit)
        metrics.DECISION_SECONDS.observe(monotonic() - began)

    def _decide(self, unit: QueuedPodGroup) -> None:
        waiting = sorted(unit.waiting, key=lambda pod: (pod.index, pod.name)) if unit.gang else unit.waiting
        need = unit.missing if unit.gang else 1
        if not waiting or need > len(waiting):
            self.queue.suspend(unit)
        elif need > 0:
            if self._start(unit, waiting[:need]) and len(waiting) > need:
                # An elastic gang grows beyond its size only after all units that have not started yet.
                self.queue.push(unit)
        elif self.queue.retried != self.cache.tables.change_epoch:
            # What came free since is first for those that have not started: they are tried before it grows.
            self.queue.mark_unschedulable(unit, WaitGroup(WaitCause.CAPACITY, unit.key))
        elif [pod for pod in waiting if not self._grow(unit, pod)]:  # as many as fit; nobody gives way to them
            self.queue.mark_unschedulable(unit, WaitGroup(WaitCause.CAPACITY, unit.key))
        else:
            self.queue.suspend(unit)

    def _start(self, unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> bool:
        """Bind all of the pods, or none."""
        try:
            outcome = self._place(unit, pods)
        except NotYetError as error:
            for pod in pods:
                if isinstance(error, GateError):
                    self.reporter.unschedulable(pod, str(error))
                else:
                    self.reporter.not_yet(pod, str(error))
            self.queue.suspend(unit)
            self.cache.tables.waits.wait_for(error.wanted, unit.key)
            return False
        except RuleError as error:
            outcome = Blocked(str(error), WaitGroup(WaitCause.CAPACITY, unit.key))
        left = unit.group
        if isinstance(outcome, Blocked):
            self._wait(outcome, unit)
            return False
        unit.group = None
        self._bind(pods, outcome.bookings)
        if unit.gang:
            nodes = len({booking.node for booking in outcome.bookings})
            logs.info("gang placed", gang=unit.key, pods=len(pods), nodes=nodes)
        if left is not None:
            self.queue.activate_next(left)
        return True

    def _wait(self, blocked: Blocked, unit: QueuedPodGroup) -> None:
        """Preempt others where that helps, report the reason, and let the unit wait."""
        message, group, left = blocked.reason, blocked.group, unit.group
        nominated = False
        if blocked.preemption is not None:
            message = self.preemptor.make(blocked.preemption, message, group)
            nominated = self.preemptor.wanted(unit.key)
        if nominated:
            group = WaitGroup(WaitCause.NOMINATED, unit.key)
        pods = unit.waiting
        metrics.DECISIONS.labels("unschedulable").inc(len(pods))
        for pod in pods:
            self.reporter.unschedulable(pod, message)
        self.queue.mark_unschedulable(unit, group)
        if nominated and left is not None and left != group:
            self.queue.activate_next(left)

    def _place(self, unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> Placed | Blocked:
        """Find places for all of the pods. Raises RuleError, and NotYetError where something is on its way."""
        for gate in self._gates:
            for pod in pods:
                gate.check(pod)
        within = unit.within if unit.gang else ""
        if within and within not in self.cache.tables.levels:
            known_levels = ", ".join(self.cache.tables.levels) or "none"
            message = f"annotation {WITHIN.name}: `{quote(within)}` is not a level of the cluster ({known_levels})"
            return Blocked(message, WaitGroup(WaitCause.UNSUPPORTED, unit.key))
        try:
            requests = {pod.uid: self._request(pod) for pod in pods}
        except UnsupportedError as error:
            alone = unit.gang or pods[0].claims
            return Blocked(str(error), WaitGroup(WaitCause.UNSUPPORTED, unit.key if alone else pods[0].shape))
        wishes = [StartRequest(request, members) for request, members in roles_of(pods, requests).items()]
        if len(wishes) > _ROLES:
            message = f"its gang has {len(wishes)} kinds of pods with different requests; the limit is {_ROLES}"
            return Blocked(message, WaitGroup(WaitCause.UNSUPPORTED, unit.key))
        over, models = self.cache.quotas.refuse(wishes)
        reach = None if unit.gang else self._among(pods[0])
        special = any(map(self._restricted, pods)) if reach is None else reach[0] is not None
        attempt = _Attempt(unit, pods, requests, special)

        def find(mask: Mask | None) -> Sequence[Booking] | None:
            try:
                # The plan for a single pod counts what its quota permits by itself.
                return self._find(attempt, narrower(models, mask) if unit.gang else mask)
            except RuleError:
                return None

        def blocked(reason: str, cause: WaitCause, what: Hashable) -> Blocked:
            need = PreemptionRequest(unit, pods, wishes, find, special)
            return Blocked(reason, WaitGroup(cause, what, self._owners(pods)), need)

        equal = Demand(unit.gang, within, tuple((wish.request, len(wish.pods)) for wish in wishes))
        demand = unit.key if special or len(pods) < unit.size else equal
        if over:
            plain = not (special or any(pod.claims for pod in pods))
            small = plain and self.cache.requests.small(gang_of(unit, pods, requests)[0])
            message = f"{over}; {SMALL}" if small else str(over)
            return blocked(message, WaitCause.QUOTA, demand if unit.gang else equal)
        # Where quotas permit all GPU models, the owners of pods do not matter for the fit.
        fit: Hashable = demand if models is None else (demand, self._owners(pods))
        known = self._full.get(fit)
        if known is not None and known[0] == self.cache.tables.change_epoch and not self.preemptor.lifted:
            return blocked(known[1], WaitCause.CAPACITY, demand)
        for pod in pods:
            self._learn(pod, requests[pod.uid])
        placed = self._find(attempt, models, reach)
        if placed is not None:
            return Placed(placed)
        message = self._explain(attempt, models, reach)
        self._give_back(pods)
        self._full[fit] = (self.cache.tables.change_epoch, message)
        return blocked(message, WaitCause.CAPACITY, demand)

    def _owners(self, pods: Sequence[PodInfo]) -> frozenset[QuotaOwner]:
        return frozenset(map(self.cache.quotas.owner, pods))

    def _choose(self, pod: PodInfo, mask: Mask) -> Booking | None:
        """Return the booking of a pod in the current state, on some nodes only."""
        try:
            request = self._request(pod)
            choice = self._best(pod, request, narrower(self._among(pod)[0], mask))
        except RuleError:
            return None
        return None if choice is None else choice.booking(request)

    def _best(self, pod: PodInfo, request: Request, among: Mask | None) -> Choice | None:
        """Return the best place for a pod; None if there is none. Raises RuleError."""
        weights = self._locality.preferred(pod) if self._locality is not None and pod.locality else None
        return self.cache.choose(pod, request, among, weights)

    def _request(self, pod: PodInfo) -> Request:
        """Raises UnsupportedError, RuleError."""
        if pod.shape.refused:
            raise UnsupportedError(pod.shape.refused)
        return self.cache.requests.request(pod.shape, self.cache.dra.demand(pod) if pod.claims else None)

    def _among(self, pod: PodInfo) -> tuple[Mask | None, str]:
        """The nodes that other pods and volumes leave; None: all. Raises RuleError."""
        mask, words = None, ""
        if self.cache.topology.touch(pod):
            mask, words = self.cache.topology.among(pod)
        if pod.claims:
            held = self.cache.claims.held(self.cache.dra.demand(pod))
            if held is not None:
                lost = int((~held)[: self.cache.tables.state.size].sum())
                more = f"{lost} without access to the devices of its ResourceClaim"
                words = joined(words, more)
                mask = narrower(mask, held)
        if pod.volumes:
            reach = self.volumes.among(pod)
            if reach is not None:
                lost = int((~reach)[: self.cache.tables.state.size].sum())
                more = f"{lost} without access to its volumes, or at the volume limit" if lost else ""
                words = joined(words, more)
                mask = narrower(mask, reach)
        if pod.locality and self._locality is not None:
            near, more = self._locality.among(pod)
            mask, words = narrower(mask, near), joined(words, more)
        return mask, words

    def _learn(self, pod: PodInfo, request: Request) -> None:
        if pod.uid not in self._learnt:
            self._learnt.add(pod.uid)
            self.cache.tables.scorer.learn(request)

    def forget(self, pod: PodInfo) -> None:
        """Forget a removed pod."""
        self._learnt.discard(pod.uid)
        self._full.pop(pod.uid, None)
        self.preemptor.forget(pod)

    def clear(self) -> None:
        """Reset after a rebuild of the state."""
        self._full.clear()
        self._told = ((0, 0, 0), {})
        self.preemptor.rebuilt()

    def _bind(self, pods: Sequence[PodInfo], bookings: Sequence[Booking]) -> None:
        """Assume all of the pods, or none, and request their bindings. Raises BookingError."""
        if len(pods) == 1:
            given = [self.cache.take(pods[0], bookings[0])]  # nothing to roll back: saves 3% of a decision
        else:
            with Statement(self.cache) as statement:
                given = [statement.allocate(pod, booking) for pod, booking in zip(pods, bookings, strict=True)]
                statement.commit()
        now = monotonic()
        for pod, claims in zip(pods, given, strict=True):
            metrics.DECISIONS.labels("placed").inc()
            metrics.QUEUE_SECONDS.observe(now - pod.seen)
            volumes = self.volumes.unbound(pod) if pod.volumes else ()
            self.binder.put(BindRequest(pod, pod.assumed, pod.devices or "", now, tuple(claims), volumes))

    def _pod_words(self, pod: PodInfo, request: Request, among: Mask | None, words: str) -> str:
        if pod.claims or among is not None or words:
            return self._own_words(pod, request, among, words)
        now = (self.cache.tables.state.position, self.cache.tables.change_epoch, self.cache.tables.node_epoch)
        if self._told[0] != now:
            self._told = (now, {})
        told = self._told[1]
        if request not in told:
            told[request] = self._own_words(pod, request, among, words)
        return told[request]

    def _own_words(self, pod: PodInfo, request: Request, among: Mask | None, words: str) -> str:
        claims = self.cache.claims.explain(pod, request) if pod.claims else None
        if claims is not None:
            request, mask, more = claims
            among, words = narrower(among, mask), joined(words, more)
        reason = why_pod(self.cache.tables.state, request, among)
        if reason.barred or not (reason.ever or self.cache.requests.never(Gang((Role("", request, 1),)))):
            reason = reason._replace(ever=True)
        return pod_message(reason, self._obstacles(request, words))

    def _obstacles(self, request: Request, more: str = "") -> list[str]:
        """Return the most frequent obstacles to a request's node set, with the number of nodes; `more` comes last."""
        counts = sorted((-count, str(obstacle)) for obstacle, count in self.cache.requests.obstacles(request).items())
        return [f"{-count} {obstacle}" for count, obstacle in counts[:_REASONS]] + ([more] if more else [])

    def _restricted(self, pod: PodInfo) -> bool:
        """Return True if other pods, volumes or claims restrict the nodes of a gang's pod. Raises RuleError."""
        cache = self.cache
        volumes = bool(pod.volumes) and self.volumes.among(pod) is not None
        local = bool(pod.locality) and self._locality is not None and self._locality.among(pod)[0] is not None
        return cache.topology.touch(pod) or volumes or local or cache.claims.searched(pod)

    def _find(
        self, attempt: _Attempt, models: Mask | None, reach: tuple[Mask | None, str] | None = None
    ) -> Sequence[Booking] | None:
        """Find a place for each of the pods, and change nothing. Raises RuleError.

        `reach`: the nodes of a single pod (`_among`), if they are known already.
        """
        for mask in preferring(self.cache.tables.spared(attempt.pods[0]), [models]):
            placed = self._find_among(attempt, mask, reach)
            if placed is not None:
                return placed
        return None

    def _find_among(
        self, attempt: _Attempt, models: Mask | None, reach: tuple[Mask | None, str] | None
    ) -> Sequence[Booking] | None:
        unit, pods, requests = attempt.unit, attempt.pods, attempt.requests
        if not unit.gang:
            pod = pods[0]
            choice = self._best(pod, requests[pod.uid], narrower((reach or self._among(pod))[0], models))
            return None if choice is None else [choice.booking(requests[pod.uid])]
        # What pods prefer counts one by one only. Where they do not fit so, they are placed without it.
        prefers = self._locality is not None and any(pod.locality for pod in pods)
        if attempt.special or prefers:
            for among in gang_domains(self.cache.tables.state, unit, each=True):
                placed = self._one_by_one(attempt, narrower(among, models))
                if not placed.reason:
                    return self._ranked(attempt, placed.bookings)
        if attempt.special:
            return None
        gang, roles = gang_of(unit, pods, requests)
        for among in gang_domains(self.cache.tables.state, unit):
            members = place_gang(self.cache.tables.scorer, unit.key, gang, narrower(among, models))
            if members is not None:
                return self._assign(unit, gang, members, roles, pods)
        return None

    def _explain(self, attempt: _Attempt, models: Mask | None, reach: tuple[Mask | None, str] | None) -> str:
        """Return why the pods do not fit. Raises RuleError."""
        unit, pods, requests = attempt.unit, attempt.pods, attempt.requests
        if reach is not None:
            words = joined(reach[1], self.cache.quotas.beyond(models))
            return self._pod_words(pods[0], requests[pods[0].uid], narrower(reach[0], models), words)
        if attempt.special:
            where = f"all pods need one {short(unit.within)}: " if unit.within else ""
            for among in gang_domains(self.cache.tables.state, unit, each=True)[-1:]:
                return f"{where}{self._one_by_one(attempt, narrower(among, models)).reason}"
            return f"{where}no machine has the label {unit.within}"
        among = narrower(gang_domains(self.cache.tables.state, unit)[-1], models)
        gang = gang_of(unit, pods, requests)[0]
        reason = why_gang(self.cache.tables.state, gang, among)
        if reason is None:
            never = ", not even if the cluster is empty" if self.cache.requests.never(gang, among, untried=True) else ""
            return f"each of its pods would fit, but not all of them together{never}"
        if reason.pod.barred or not (reason.ever or self.cache.requests.never(gang)):
            reason = reason._replace(ever=True, pod=reason.pod._replace(ever=True))
        return gang_message(reason, self._obstacles(reason.role.request, self.cache.quotas.beyond(models)))

    def _assign(
        self,
        unit: QueuedPodGroup,
        gang: Gang,
        placed: list[Member],
        roles: list[list[PodInfo]],
        pods: Sequence[PodInfo],
    ) -> list[Booking]:
        """Members of each role to its pods, in the order of their indexes: neighbours stay neighbours."""
        state = self.cache.tables.state
        found: dict[str, Booking] = {}
        for role, members in zip(gang.roles, roles, strict=True):
            mine = [member for member in placed if member.role == role.name]
            for pod, member in zip(members, mine, strict=True):
                found[pod.uid] = state.release((unit.key, role.name, member.number))
        return [found[pod.uid] for pod in pods]

    def _ranked(self, attempt: _Attempt, bookings: Sequence[Booking]) -> list[Booking]:
        """Exchange the places of equal pods so that ranks of one domain are neighbours."""
        found = list(bookings)
        equal: dict[Hashable, list[int]] = {}
        for index, pod in enumerate(attempt.pods):
            if not pod.claims:  # its devices are chosen for it alone
                labels = frozenset(item for item in pod.labels.items() if item[0] not in _RANK_LABELS)
                equal.setdefault((attempt.requests[pod.uid], pod.shape, pod.volumes, labels), []).append(index)
        for indexes in equal.values():
            order = contiguous(self.cache.tables.state, [bookings[index].node for index in indexes])
            for index, other in zip(indexes, order, strict=True):
                found[index] = bookings[indexes[other]]
        return found

    def _one_by_one(self, attempt: _Attempt, models: Mask | None) -> _Partly:
        """Place pods one after the other: each may restrict the nodes of the next. All is undone. Raises RuleError."""
        pods, placed = attempt.pods, list[Booking]()
        with Statement(self.cache) as statement:
            for pod in pods:
                try:
                    # Claims that the gang shares may have got their devices with an earlier member.
                    request = self._request(pod) if pod.claims else attempt.requests[pod.uid]
                except NotYetError:
                    raise
                except RuleError as error:
                    return _Partly(placed, str(error))
                among, words = self._among(pod)
                among = narrower(among, models)
                choice = self._best(pod, request, among)
                if choice is None:
                    words = self._pod_words(pod, request, among, words)
                    return _Partly(placed, f"{len(placed)} of {len(pods)} fit; {words}")
                placed.append(choice.booking(request))
                statement.allocate(pod, placed[-1])
        return _Partly(placed)

    def _give_back(self, pods: Sequence[PodInfo]) -> None:
        """Devices that were allocated for pods before they were bound, and that now keep them from being placed."""
        for pod, held in [(pod, self.cache.dra.demand(pod).held) for pod in pods if pod.claims]:
            self.binder.give_back(pod, held)

    def _grow(self, unit: QueuedPodGroup, pod: PodInfo) -> bool:
        """Bind a pod that an elastic gang has beyond its size, if it fits."""
        try:
            request = self._request(pod)
            among, words = self._among(pod)
        except RuleError as error:
            self.reporter.unschedulable(pod, str(error))
            return False
        over, models = self.cache.quotas.refuse([StartRequest(request, [pod])])
        if over:
            self.reporter.unschedulable(pod, f"the gang is running; additional pod: {over}")
            return False
        among, words = narrower(among, models), joined(words, self.cache.quotas.beyond(models))
        for near in preferring(self.cache.tables.spared(pod), gang_domains(self.cache.tables.state, unit)):
            choice = self._best(pod, request, narrower(among, near))
            if choice is not None:
                self._bind([pod], [choice.booking(request)])
                return True
        words = self._pod_words(pod, request, among, words)
        self.reporter.unschedulable(pod, f"the gang is running; additional pod: {words}")
        return False


def joined(*words: str) -> str:
    """Join the non-empty texts with commas."""
    return ", ".join(filter(None, words))
