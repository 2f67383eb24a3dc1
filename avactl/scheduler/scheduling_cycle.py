"""Decisions: from a unit of the queue to bindings, or to words on why not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import monotonic

from avactl import names
from avactl.kube import logs
from avactl.placement.allocation import Booking
from avactl.placement.diagnosis import SMALL, gang_words, pod_words, short, why_gang, why_pod
from avactl.placement.gang import Gang, Member, Role, place_gang
from avactl.placement.request import Request
from avactl.placement.score import Choice
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.cache.tables import Mask
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.cache.volume_binding import VolumeBinding
from avactl.scheduler.interfaces import BindingSink, BindRequest, EvictionSink, StatusSink
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, RuleError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption.attempt import PreemptionRequest
from avactl.scheduler.preemption.candidates import BudgetChecker
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.preemption.preemptor import Preemptor
from avactl.scheduler.queue.gang_domains import gang_domains
from avactl.scheduler.queue.gang_request import gang_of, roles_of
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue

_KNOWN = 10_000
"""Requests of which it is remembered that they fit nowhere."""
_ROLES = 64
"""Kinds of pods of one gang: the search over domains goes through each of them."""
_REASONS = 4
"""Reasons of node sets that are named."""


_GENERAL = "(selector, affinity, taints, cordon)"
"""What the engine says of nodes that are not in a pod's set: it does not know why."""


class SchedulingCycle:
    """Decides on one unit at a time, synchronously: nothing changes while it does."""

    def __init__(
        self,
        fleet: ClusterCache,
        queue: SchedulingQueue,
        binder: BindingSink,
        reports: StatusSink,
        volumes: VolumeBinding,
        evictor: EvictionSink | None = None,
        budgets: BudgetChecker | None = None,
        share: float = 1.0,
    ) -> None:
        """Without an evictor nobody gives way to others. Budgets say which services are spared; without: none.

        At most a `share` of all time goes into plans for room that come to nothing.
        """
        self.fleet, self.queue, self.binder, self.reports, self.volumes = fleet, queue, binder, reports, volumes
        self.room = Preemptor(fleet, queue, budgets or DisruptionBudgets(), evictor, self._choose, share)
        self._full: dict[Hashable, tuple[int, str]] = {}
        """Requests that fitted nowhere: what had been freed by then, and why."""
        self._learnt: set[str] = set()
        self._told: tuple[tuple[int, int, int], dict[Request, str]] = ((0, 0, 0), {})
        """Why requests that may go anywhere fit nowhere, and how far everything was then."""

    def sync(self) -> None:
        """Notice what was freed for whom. To be called after changes, when nothing may be left to decide."""
        self.fleet.topology.drop_unused()
        self.room.sync()

    def decide(self, unit: QueuedPodGroup) -> None:
        """Place a unit, or say why not and let it wait."""
        began = monotonic()
        self.room.sync()
        if len(self._full) > _KNOWN:
            self._full.clear()
        with self.room.own(unit):
            if unit.gang:
                self._gang(unit)
            else:
                for pod in unit.waiting:
                    self._single(unit, pod)
        metrics.DECISION_SECONDS.observe(monotonic() - began)

    # -- one pod ----------------------------------------------------------------------------------------------------

    def _single(self, unit: QueuedPodGroup, pod: PodInfo) -> None:
        try:
            request = self._request(pod)
            if isinstance(request, str):
                self._wait(unit, [pod], request, ("refused", pod.uid if pod.claims else pod.shape))
                return
            wishes = [StartRequest(request, [pod])]
            over, models = self.fleet.quotas.refuse(wishes)
            among, words = self._among(pod)
            among, words = narrower(among, models), joined(words, self.fleet.quotas.beyond(models))
        except NotYetError as error:
            self.reports.not_yet(pod, str(error))
            self.queue.suspend(unit)
            self.fleet.tables.waits.wait_for(error.wanted, unit.key)
            return
        except RuleError as error:
            self._wait(unit, [pod], str(error), pod.uid)
            return
        need = PreemptionRequest(unit, [pod], wishes, lambda mask: self._trial(pod, request, mask), among is not None)
        # Who may push others out is tried for itself, and by team: others of the group cannot speak for it.
        ours = (self.fleet.quotas.team(pod), pod.rank, pod.preemptible, pod.never_preempts)
        group: Hashable = request if among is None else pod.uid
        if over:
            small = among is None and not pod.claims and self.fleet.requests.small(Gang((Role("pod", request, 1),)))
            self._no_place(need, f"{over}; {SMALL}" if small else over, ("quota", request, *ours))
            return
        known = self._full.get(group)
        if known is not None and known[0] == self.fleet.tables.change_epoch and not self.room.lifted:
            self._no_place(need, known[1], (group, *ours))
            return
        self._learn(pod, request)
        choice = self.fleet.choose(pod, request, among)
        if choice is None:
            message = self._pod_words(pod, request, among, words)
            self._give_back([pod])
            self._full[group] = (self.fleet.tables.change_epoch, message)
            self._no_place(need, message, (group, *ours))
            return
        left = unit.group
        unit.group = None
        self._bind([pod], [choice.booking(request)])
        if left is not None:
            self.queue.activate_next(left)

    def _trial(self, pod: PodInfo, request: Request, mask: Mask | None) -> list[Booking] | None:
        try:
            choice = self.fleet.choose(pod, request, narrower(self._among(pod)[0], mask))
        except RuleError:
            return None
        return None if choice is None else [choice.booking(request)]

    def _choose(self, pod: PodInfo, mask: Mask) -> Booking | None:
        """Where a pod would go as things stand, only among some nodes."""
        try:
            request = self._request(pod)
        except RuleError:
            return None
        found = None if isinstance(request, str) else self._trial(pod, request, mask)
        return found[0] if found else None

    def _no_place(self, need: PreemptionRequest, message: str, group: Hashable) -> None:
        """Make room if somebody has to, and let it wait."""
        unit, left = need.unit, need.unit.group
        message = self.room.make(need, message, group)
        pods = unit.waiting
        if self.room.wanted(unit.key):
            self._wait(unit, pods, message, ("room", unit.key))
            if left is not None and left != unit.group:
                self.queue.activate_next(left)
        else:
            self._wait(unit, pods, message, group)

    def _request(self, pod: PodInfo) -> Request | str:
        if pod.shape.refused:
            return pod.shape.refused
        if not pod.claims:
            return self.fleet.requests.request(pod.shape)
        try:
            return self.fleet.requests.request(pod.shape, self.fleet.dra.demand(pod))
        except NotYetError:
            raise
        except RuleError as error:
            return str(error)

    def _among(self, pod: PodInfo) -> tuple[Mask | None, str]:
        """The nodes that other pods and volumes leave; None: all. Raises RuleError."""
        mask, words = None, ""
        if self.fleet.topology.touch(pod):
            mask, words = self.fleet.topology.among(pod)
        if pod.claims:
            held = self.fleet.claims.held(self.fleet.dra.demand(pod))
            if held is not None:
                lost = int((~held)[: self.fleet.tables.state.size].sum())
                more = f"{lost} out of reach of the devices that its ResourceClaim has"
                words = joined(words, more)
                mask = narrower(mask, held)
        if pod.volumes:
            reach = self.volumes.among(pod)
            if reach is not None:
                lost = int((~reach)[: self.fleet.tables.state.size].sum())
                more = f"{lost} out of reach of its volumes, or full of such" if lost else ""
                words = joined(words, more)
                mask = narrower(mask, reach)
        return mask, words

    def _learn(self, pod: PodInfo, request: Request) -> None:
        if pod.uid not in self._learnt:
            self._learnt.add(pod.uid)
            self.fleet.tables.scorer.learn(request)

    def forget(self, pod: PodInfo) -> None:
        """A pod is gone."""
        self._learnt.discard(pod.uid)
        self._full.pop(pod.uid, None)
        self.room.forget(pod)

    def clear(self) -> None:
        """The state was built anew."""
        self._full.clear()
        self._told = ((0, 0, 0), {})
        self.room.rebuilt()

    def _bind(self, pods: Sequence[PodInfo], bookings: Sequence[Booking]) -> None:
        """Assume all of the pods, or none, and request their bindings. Raises BookingError."""
        if len(pods) == 1:
            given = [self.fleet.take(pods[0], bookings[0])]  # nothing to roll back: saves 3% of a decision
        else:
            with Statement(self.fleet) as statement:
                given = [statement.allocate(pod, booking) for pod, booking in zip(pods, bookings, strict=True)]
                statement.commit()
        now = monotonic()
        for pod, claims in zip(pods, given, strict=True):
            metrics.DECISIONS.labels("placed").inc()
            metrics.QUEUE_SECONDS.observe(now - pod.seen)
            volumes = self.volumes.unbound(pod) if pod.volumes else ()
            self.binder.put(BindRequest(pod, pod.assumed, pod.devices or "", now, tuple(claims), volumes))

    def _wait(self, unit: QueuedPodGroup, pods: Sequence[PodInfo], message: str, group: Hashable) -> None:
        metrics.DECISIONS.labels("unschedulable").inc(len(pods))
        for pod in pods:
            self.reports.unschedulable(pod, message)
        self.queue.mark_unschedulable(unit, group)

    def _pod_words(self, pod: PodInfo, request: Request, among: Mask | None, words: str) -> str:
        if pod.claims or among is not None or words:
            return self._own_words(pod, request, among, words)
        now = (self.fleet.tables.state.position, self.fleet.tables.change_epoch, self.fleet.tables.node_epoch)
        if self._told[0] != now:
            self._told = (now, {})
        told = self._told[1]
        if request not in told:
            told[request] = self._own_words(pod, request, among, words)
        return told[request]

    def _own_words(self, pod: PodInfo, request: Request, among: Mask | None, words: str) -> str:
        claims = self.fleet.claims.explain(pod, request) if pod.claims else None
        if claims is not None:
            request, mask, more = claims
            among, words = narrower(among, mask), joined(words, more)
        reason = why_pod(self.fleet.tables.state, request, among)
        if reason.barred or not (reason.ever or self.fleet.requests.never(Gang((Role("", request, 1),)))):
            reason = reason._replace(ever=True)
        return self._detailed(pod_words(reason), request, words)

    def _detailed(self, text: str, request: Request, more: str = "") -> str:
        """With what keeps nodes out of a pod's node set in the place of the engine's general words."""
        counts = sorted(self.fleet.requests.obstacles(request).items(), key=lambda each: (-each[1], each[0]))
        named = [f"{count} {reason}" for reason, count in counts[:_REASONS]]
        return text.replace(_GENERAL, f"({', '.join([*named, *([more] if more else [])])})")

    # -- a gang -----------------------------------------------------------------------------------------------------

    def _gang(self, unit: QueuedPodGroup) -> None:
        waiting = sorted(unit.waiting, key=lambda pod: (pod.index, pod.name))
        need = unit.missing
        if not waiting:
            self.queue.suspend(unit)
            return
        if need > len(waiting):
            self.queue.suspend(unit)
            return
        if need > 0:
            if self._together(unit, waiting[:need]) and len(waiting) > need:
                # What an elastic gang can use beyond its size comes after all that have not started yet.
                self.queue.push(unit)
            return
        if self.queue.retried != self.fleet.tables.change_epoch:
            # What came free since is first for those that have not started: they are tried before it grows.
            self.queue.mark_unschedulable(unit, unit.key)
            return
        # Whatever of it fits; nobody gives way to it.
        if [pod for pod in waiting if not self._extra(unit, pod)]:
            self.queue.mark_unschedulable(unit, unit.key)
        else:
            self.queue.suspend(unit)

    def _together(self, unit: QueuedPodGroup, pods: list[PodInfo]) -> bool:
        """Place all of them, or none."""
        requests: dict[str, Request] = {}
        if unit.within and unit.within not in self.fleet.tables.levels:
            known_levels = ", ".join(self.fleet.tables.levels) or "none"
            message = f"annotation {names.WITHIN}: `{quote(unit.within)}` is no level of the cluster ({known_levels})"
            self._wait(unit, unit.waiting, message, unit.key)
            return False
        try:
            for pod in pods:
                request = self._request(pod)
                if isinstance(request, str):
                    self._wait(unit, unit.waiting, request, ("refused", unit.key))
                    return False
                requests[pod.uid] = request
            wishes = [StartRequest(request, members) for request, members in roles_of(pods, requests).items()]
            if len(wishes) > _ROLES:
                message = f"its gang has {len(wishes)} kinds of pods by what they ask for; at most {_ROLES} are placed"
                self._wait(unit, unit.waiting, message, ("refused", unit.key))
                return False
            over, models = self.fleet.quotas.refuse(wishes)
            special = any(
                self.fleet.topology.touch(pod) or self._bound_to(pod) or self.fleet.claims.searched(pod) for pod in pods
            )

            def find(mask: Mask | None) -> list[Booking] | None:
                try:
                    return self._find(unit, pods, requests, narrower(models, mask), special)
                except RuleError:
                    return None

            need = PreemptionRequest(unit, pods, wishes, find, special)
            group = self._group(unit, pods, wishes, special)
            if over:
                plain = not (special or any(pod.claims for pod in pods))
                small = plain and self.fleet.requests.small(gang_of(unit, pods, requests)[0])
                self._no_place(need, f"{over}; {SMALL}" if small else over, ("quota", group))
                return False
            known = self._full.get(group)
            if known is not None and known[0] == self.fleet.tables.change_epoch and not self.room.lifted:
                self._no_place(need, known[1], group)
                return False
            for pod in pods:
                self._learn(pod, requests[pod.uid])
            placed = self._find(unit, pods, requests, models, special)
            message = "" if placed else self._gang_words(unit, pods, requests, models, special)
        except NotYetError as error:
            for pod in pods:
                self.reports.not_yet(pod, str(error))
            self.queue.suspend(unit)
            self.fleet.tables.waits.wait_for(error.wanted, unit.key)
            return False
        except RuleError as error:
            self._wait(unit, unit.waiting, str(error), unit.key)
            return False
        if placed is None:
            self._give_back(pods)
            self._full[group] = (self.fleet.tables.change_epoch, message)
            self._no_place(need, message, group)
            return False
        left, unit.group = unit.group, None
        self._bind(pods, placed)
        logs.info("gang placed", gang=unit.key, pods=len(pods), nodes=len({booking.node for booking in placed}))
        if left is not None:
            self.queue.activate_next(left)
        return True

    def _group(
        self, unit: QueuedPodGroup, pods: Sequence[PodInfo], wishes: Sequence[StartRequest], special: bool
    ) -> Hashable:
        """What a gang has in common with those that fit if and only if it does: as long as one waits, all do."""
        if special or len(pods) < unit.size:
            return unit.key
        ours = frozenset((self.fleet.quotas.team(pod), pod.rank, pod.preemptible, pod.never_preempts) for pod in pods)
        return ("gang", unit.within, tuple((wish.request, len(wish.pods)) for wish in wishes), ours)

    def _bound_to(self, pod: PodInfo) -> bool:
        """Whether only some machines reach its volumes. Raises RuleError."""
        return bool(pod.volumes) and self.volumes.among(pod) is not None

    def _find(
        self,
        unit: QueuedPodGroup,
        pods: list[PodInfo],
        requests: dict[str, Request],
        models: Mask | None,
        special: bool,
    ) -> list[Booking] | None:
        """A place for each of the pods, as things stand; nothing is changed. Raises RuleError."""
        if special:
            for among in gang_domains(self.fleet.tables.state, unit, each=True):
                placed = self._one_by_one(pods, requests, narrower(among, models))
                if not isinstance(placed, str):
                    return placed
            return None
        gang, roles = gang_of(unit, pods, requests)
        for among in gang_domains(self.fleet.tables.state, unit):
            members = place_gang(self.fleet.tables.scorer, unit.key, gang, narrower(among, models))
            if members is not None:
                return self._assign(unit, gang, members, roles, pods)
        return None

    def _gang_words(
        self,
        unit: QueuedPodGroup,
        pods: list[PodInfo],
        requests: dict[str, Request],
        models: Mask | None,
        special: bool,
    ) -> str:
        if special:
            where = f"needs one {short(unit.within)} for all: " if unit.within else ""
            for among in gang_domains(self.fleet.tables.state, unit, each=True)[-1:]:
                return f"{where}{self._one_by_one(pods, requests, narrower(among, models))}"
            return f"{where}no machine has the label {unit.within}"
        among = narrower(gang_domains(self.fleet.tables.state, unit)[-1], models)
        gang = gang_of(unit, pods, requests)[0]
        reason = why_gang(self.fleet.tables.state, gang, among)
        if reason is None:
            never = ", not even if the cluster is empty" if self.fleet.requests.never(gang, among, untried=True) else ""
            return f"its pods are in each other's way: each would fit, but not all of them together{never}"
        if reason.pod.barred or not (reason.ever or self.fleet.requests.never(gang)):
            reason = reason._replace(ever=True, pod=reason.pod._replace(ever=True))
        text = gang_words(reason).replace(f" {reason.role.name} pods", " pods")
        return self._detailed(text, reason.role.request, self.fleet.quotas.beyond(models))

    def _assign(
        self, unit: QueuedPodGroup, gang: Gang, placed: list[Member], roles: list[list[PodInfo]], pods: list[PodInfo]
    ) -> list[Booking]:
        """Members of each role to its pods, in the order of their indexes: neighbours stay neighbours."""
        state = self.fleet.tables.state
        found: dict[str, Booking] = {}
        for role, members in zip(gang.roles, roles, strict=True):
            mine = [member for member in placed if member.role == role.name]
            for pod, member in zip(members, mine, strict=True):
                found[pod.uid] = state.release((unit.key, role.name, member.number))
        return [found[pod.uid] for pod in pods]

    def _one_by_one(
        self, pods: list[PodInfo], requests: dict[str, Request], models: Mask | None
    ) -> list[Booking] | str:
        """Members in whose places other pods or volumes have a say: each after the other, all undone if one fails."""
        placed: list[Booking] = []
        with Statement(self.fleet) as statement:
            for pod in pods:
                # Claims that the gang shares may have got their devices with an earlier member.
                request = self._request(pod) if pod.claims else requests[pod.uid]
                if isinstance(request, str):
                    return request
                among, words = self._among(pod)
                among = narrower(among, models)
                choice = self.fleet.choose(pod, request, among)
                if choice is None:
                    return f"{len(placed)} of {len(pods)} fit; {self._pod_words(pod, request, among, words)}"
                placed.append(choice.booking(request))
                statement.allocate(pod, placed[-1])
        return placed

    def _give_back(self, pods: Sequence[PodInfo]) -> None:
        """Devices that were allocated for pods before they were bound, and that now keep them from being placed."""
        for pod, held in [(pod, self.fleet.dra.demand(pod).held) for pod in pods if pod.claims]:
            self.binder.give_back(pod, held)

    def _extra(self, unit: QueuedPodGroup, pod: PodInfo) -> bool:
        try:
            request = self._request(pod)
            among, words = self._among(pod)
        except RuleError as error:
            request = str(error)
        if isinstance(request, str):
            self.reports.unschedulable(pod, request)
            return False
        over, models = self.fleet.quotas.refuse([StartRequest(request, [pod])])
        if over:
            self.reports.unschedulable(pod, f"the gang runs; more of it: {over}")
            return False
        among, words = narrower(among, models), joined(words, self.fleet.quotas.beyond(models))
        choice: Choice | None = None
        for near in gang_domains(self.fleet.tables.state, unit):
            choice = self.fleet.choose(pod, request, narrower(among, near))
            if choice is not None:
                self._bind([pod], [choice.booking(request)])
                return True
        self.reports.unschedulable(pod, f"the gang runs; more of it: {self._pod_words(pod, request, among, words)}")
        return False


def narrower(one: Mask | None, other: Mask | None) -> Mask | None:
    """What both leave; None leaves all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def joined(*words: str) -> str:
    """What there is of them, as a list."""
    return ", ".join(filter(None, words))
