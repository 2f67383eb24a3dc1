"""Decisions: from a unit of the queue to bindings, or to words on why not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import monotonic

import numpy as np

from avactl.kube import logs
from avactl.placement.gang import Gang, Member, Role, place_gang
from avactl.placement.request import Request
from avactl.placement.score import Choice
from avactl.placement.state import Booking
from avactl.placement.why import gang_words, pod_words, why_gang, why_pod
from avactl.scheduler import metrics
from avactl.scheduler.fleet import Fleet, Mask
from avactl.scheduler.pod import Pod
from avactl.scheduler.ports import Binds, Order, Tells
from avactl.scheduler.queue import Queue, Unit
from avactl.scheduler.quotas import Wish
from avactl.scheduler.rules import NotYetError, RuleError
from avactl.scheduler.volumes import Volumes

_KNOWN = 10_000
"""Requests of which it is remembered that they fit nowhere."""
_REASONS = 4
"""Reasons of node sets that are named."""


_GENERAL = "(selector, affinity, taints, cordon)"
"""What the engine says of nodes that are not in a pod's set: it does not know why."""


class Decider:
    """Decides on one unit at a time, synchronously: nothing changes while it does."""

    def __init__(self, fleet: Fleet, queue: Queue, binder: Binds, reports: Tells, volumes: Volumes) -> None:
        self.fleet, self.queue, self.binder, self.reports, self.volumes = fleet, queue, binder, reports, volumes
        self._full: dict[Hashable, tuple[int, str]] = {}
        """Requests that fitted nowhere: what had been freed by then, and why."""
        self._learnt: set[str] = set()

    def decide(self, unit: Unit) -> None:
        """Place a unit, or say why not and let it wait."""
        began = monotonic()
        if len(self._full) > _KNOWN:
            self._full.clear()
        if unit.gang:
            self._gang(unit)
        else:
            for pod in unit.waiting:
                self._single(unit, pod)
        metrics.DECISION_SECONDS.observe(monotonic() - began)

    # -- one pod ----------------------------------------------------------------------------------------------------

    def _single(self, unit: Unit, pod: Pod) -> None:
        try:
            request = self._request(pod)
            if isinstance(request, str):
                self._wait(unit, [pod], request, ("refused", pod.uid if pod.claims else pod.shape))
                return
            over, models = self.fleet.quotas.refuse([Wish(request, [pod])])
            if over:
                self._wait(unit, [pod], over, ("quota", self.fleet.quotas.team(pod), request, pod.preemptible))
                return
            among, words = self._among(pod)
            among = narrower(among, models)
        except NotYetError as error:
            self.reports.not_yet(pod, str(error))
            self.queue.rest(unit)
            self.fleet.wait_for(error.wanted, unit.key)
            return
        except RuleError as error:
            self._wait(unit, [pod], str(error), pod.uid)
            return
        group: Hashable = request if among is None else pod.uid
        known = self._full.get(group)
        if known is not None and known[0] == self.fleet.freed:
            self._wait(unit, [pod], known[1], group)
            return
        self._learn(pod, request)
        choice = self.fleet.choose(pod, request, among)
        if choice is None:
            message = self._pod_words(pod, request, among, words)
            self._give_back([pod])
            self._full[group] = (self.fleet.freed, message)
            self._wait(unit, [pod], message, group)
            return
        left = unit.group
        unit.group = None
        self._bind(pod, choice.node, choice.booking(request))
        if left is not None:
            self.queue.follow(left)

    def _request(self, pod: Pod) -> Request | str:
        if pod.shape.refused:
            return pod.shape.refused
        if not pod.claims:
            return self.fleet.asks.request(pod.shape)
        try:
            return self.fleet.asks.request(pod.shape, self.fleet.dra.demand(pod))
        except NotYetError:
            raise
        except RuleError as error:
            return str(error)

    def _among(self, pod: Pod) -> tuple[Mask | None, str]:
        """The nodes that other pods and volumes leave; None: all. Raises RuleError."""
        mask, words = None, ""
        if self.fleet.others.touch(pod):
            mask, words = self.fleet.others.among(pod)
        if pod.claims:
            held = self.fleet.claims.held(self.fleet.dra.demand(pod))
            if held is not None:
                lost = int((~held)[: self.fleet.state.size].sum())
                words = ", ".join(filter(None, [words, f"{lost} do not reach the devices that its ResourceClaim has"]))
                mask = narrower(mask, held)
        if pod.volumes:
            reach = self.volumes.among(pod)
            if reach is not None:
                lost = int((~reach)[: self.fleet.state.size].sum())
                words = ", ".join(filter(None, [words, f"{lost} do not reach its volumes" if lost else ""]))
                mask = narrower(mask, reach)
        return mask, words

    def _learn(self, pod: Pod, request: Request) -> None:
        if pod.uid not in self._learnt:
            self._learnt.add(pod.uid)
            self.fleet.scorer.learn(request)

    def forget(self, pod: Pod) -> None:
        """A pod is gone."""
        self._learnt.discard(pod.uid)
        self._full.pop(pod.uid, None)

    def clear(self) -> None:
        """The state was built anew."""
        self._full.clear()

    def _bind(self, pod: Pod, node: int, booking: Booking) -> None:
        name = self.fleet.state.names[node]
        assert name is not None
        given = self.fleet.take(pod, booking)
        now = monotonic()
        metrics.DECISIONS.labels("placed").inc()
        metrics.QUEUE_SECONDS.observe(now - pod.seen)
        volumes = self.volumes.unbound(pod) if pod.volumes else ()
        self.binder.put(Order(pod, name, pod.devices or "", now, tuple(given), volumes))

    def _wait(self, unit: Unit, pods: Sequence[Pod], message: str, group: Hashable) -> None:
        metrics.DECISIONS.labels("unschedulable").inc(len(pods))
        for pod in pods:
            self.reports.unschedulable(pod, message)
        self.queue.park(unit, group)

    def _pod_words(self, pod: Pod, request: Request, among: Mask | None, words: str) -> str:
        claims = self.fleet.claims.explain(pod, request) if pod.claims else None
        if claims is not None:
            request, mask, more = claims
            among, words = narrower(among, mask), ", ".join(filter(None, [words, more]))
        reason = why_pod(self.fleet.state, request, among)
        if all(cause.what == "nodes" for cause in reason.causes):
            # Size is not what is wrong, and taints and cordons go.
            reason = reason._replace(ever=True)
        return self._detailed(pod_words(reason), request, words)

    def _detailed(self, text: str, request: Request, more: str = "") -> str:
        """With what keeps nodes out of a pod's node set in the place of the engine's general words."""
        counts = sorted(self.fleet.asks.obstacles(request).items(), key=lambda each: (-each[1], each[0]))
        named = [f"{count} {reason}" for reason, count in counts[:_REASONS]]
        return text.replace(_GENERAL, f"({', '.join([*named, *([more] if more else [])])})")

    # -- a gang -----------------------------------------------------------------------------------------------------

    def _gang(self, unit: Unit) -> None:
        waiting = sorted(unit.waiting, key=lambda pod: (pod.index, pod.name))
        need = missing(unit)
        if not waiting:
            self.queue.rest(unit)
            return
        if need > len(waiting):
            self.queue.rest(unit)
            return
        required, extra = waiting[: max(0, need)], waiting[max(0, need) :]
        if required and not self._together(unit, required):
            return
        # What an elastic gang can use beyond its size: whatever of it fits.
        unplaced = [pod for pod in extra if not self._extra(unit, pod)]
        if unplaced:
            self.queue.park(unit, unit.key)
        else:
            self.queue.rest(unit)

    def _together(self, unit: Unit, pods: list[Pod]) -> bool:
        """Place all of them, or none."""
        requests: dict[str, Request] = {}
        try:
            for pod in pods:
                request = self._request(pod)
                if isinstance(request, str):
                    self._wait(unit, unit.waiting, request, ("refused", unit.key))
                    return False
                requests[pod.uid] = request
            wishes = [Wish(request, members) for request, members in roles_of(pods, requests).items()]
            over, models = self.fleet.quotas.refuse(wishes)
            special = any(
                self.fleet.others.touch(pod) or pod.volumes or self.fleet.claims.searched(pod) for pod in pods
            )
            group = self._group(unit, pods, wishes, special)
            if over:
                self._wait(unit, unit.waiting, over, ("quota", group))
                return False
            known = self._full.get(group)
            if known is not None and known[0] == self.fleet.freed:
                self._wait(unit, unit.waiting, known[1], group)
                return False
            for pod in pods:
                self._learn(pod, requests[pod.uid])
            placed = self._one_by_one(pods, requests, models) if special else self._engine(unit, pods, requests, models)
        except NotYetError as error:
            for pod in pods:
                self.reports.not_yet(pod, str(error))
            self.queue.rest(unit)
            self.fleet.wait_for(error.wanted, unit.key)
            return False
        except RuleError as error:
            self._wait(unit, unit.waiting, str(error), unit.key)
            return False
        if isinstance(placed, str):
            self._give_back(pods)
            self._full[group] = (self.fleet.freed, placed)
            self._wait(unit, unit.waiting, placed, group)
            return False
        left, unit.group = unit.group, None
        for pod, booking in zip(pods, placed, strict=True):
            self._bind(pod, booking.node, booking)
        logs.info("gang placed", gang=unit.key, pods=len(pods), nodes=len({booking.node for booking in placed}))
        if left is not None:
            self.queue.follow(left)
        return True

    def _group(self, unit: Unit, pods: Sequence[Pod], wishes: Sequence[Wish], special: bool) -> Hashable:
        """What a gang has in common with those that fit if and only if it does: as long as one waits, all do."""
        if special or len(pods) < unit.size:
            return unit.key
        team, preemptible = self.fleet.quotas.team(pods[0]), all(pod.preemptible for pod in pods)
        return ("gang", tuple((wish.request, len(wish.pods)) for wish in wishes), team, preemptible)

    def _engine(
        self, unit: Unit, pods: list[Pod], requests: dict[str, Request], models: Mask | None
    ) -> list[Booking] | str:
        roles = roles_of(pods, requests)
        gang = Gang(
            tuple(
                Role(f"{unit.key}/{number}", request, len(members))
                for number, (request, members) in enumerate(roles.items())
            )
        )
        for among in self._near(unit):
            placed = place_gang(self.fleet.scorer, unit.key, gang, narrower(among, models))
            if placed is not None:
                return self._assign(unit, gang, placed, list(roles.values()), pods)
        reason = why_gang(self.fleet.state, gang, models)
        if reason is None:
            return "its pods are in each other's way: each would fit, but not all of them together"
        text = gang_words(reason).replace(f" {reason.role.name} pods", " pods")
        return self._detailed(text, reason.role.request)

    def _assign(
        self, unit: Unit, gang: Gang, placed: list[Member], roles: list[list[Pod]], pods: list[Pod]
    ) -> list[Booking]:
        """Members of each role to its pods, in the order of their indexes: neighbours stay neighbours."""
        state = self.fleet.state
        found: dict[str, Booking] = {}
        for role, members in zip(gang.roles, roles, strict=True):
            mine = [member for member in placed if member.role == role.name]
            for pod, member in zip(members, mine, strict=True):
                found[pod.uid] = state.release((unit.key, role.name, member.number))
        return [found[pod.uid] for pod in pods]

    def _near(self, unit: Unit) -> list[Mask | None]:
        """Where to look: next to those of the gang that run, level by level, then everywhere."""
        state = self.fleet.state
        slots = [
            state.slots[node]
            for pod in unit.pods.values()
            if (node := pod.node or pod.assumed) in state.slots and not pod.ended
        ]
        if not slots:
            return [None]
        masks: list[Mask | None] = []
        for level in range(len(state.levels) - 1, -1, -1):
            domains = state.domains[:, level]
            wanted = np.unique(domains[slots])
            masks.append(np.isin(domains, wanted[wanted >= 0]))
        return [*masks, None]

    def _one_by_one(self, pods: list[Pod], requests: dict[str, Request], models: Mask | None) -> list[Booking] | str:
        """Members in whose places other pods or volumes have a say: each after the other, all undone if one fails."""
        placed: list[Booking] = []
        message = ""
        for pod in pods:
            request = requests[pod.uid]
            among, words = self._among(pod)
            among = narrower(among, models)
            choice = self.fleet.choose(pod, request, among)
            if choice is None:
                message = f"{len(placed)} of {len(pods)} fit; {self._pod_words(pod, request, among, words)}"
                break
            self.fleet.take(pod, choice.booking(request))
            placed.append(choice.booking(request))
        freed = self.fleet.freed
        for pod in pods[: len(placed)]:
            self.fleet.forget(pod)
        self.fleet.freed = freed
        return message or placed

    def _give_back(self, pods: Sequence[Pod]) -> None:
        """Devices that were allocated for pods before they were bound, and that now keep them from being placed."""
        for pod in pods:
            if pod.claims:
                self.binder.give_back(pod, self.fleet.dra.demand(pod).held)

    def _extra(self, unit: Unit, pod: Pod) -> bool:
        try:
            request = self._request(pod)
            among, words = self._among(pod)
        except RuleError as error:
            request = str(error)
        if isinstance(request, str):
            self.reports.unschedulable(pod, request)
            return False
        over, models = self.fleet.quotas.refuse([Wish(request, [pod])])
        if over:
            self.reports.unschedulable(pod, f"the gang runs; more of it: {over}")
            return False
        among = narrower(among, models)
        choice: Choice | None = None
        for near in self._near(unit):
            choice = self.fleet.scorer.choose(request, narrower(among, near))
            if choice is not None:
                self._bind(pod, choice.node, choice.booking(request))
                return True
        self.reports.unschedulable(pod, f"the gang runs; more of it: {self._pod_words(pod, request, among, words)}")
        return False


def missing(unit: Unit) -> int:
    """Pods that a gang still needs."""
    held = sum(
        1
        for pod in unit.pods.values()
        if pod.phase == "Succeeded" or ((pod.node or pod.assumed) and not pod.ended and not pod.deleting)
    )
    return unit.size - held


def narrower(one: Mask | None, other: Mask | None) -> Mask | None:
    """What both leave; None leaves all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def roles_of(pods: Sequence[Pod], requests: dict[str, Request]) -> dict[Request, list[Pod]]:
    """Pods by what they ask for."""
    roles: dict[Request, list[Pod]] = {}
    for pod in pods:
        roles.setdefault(requests[pod.uid], []).append(pod)
    return roles
