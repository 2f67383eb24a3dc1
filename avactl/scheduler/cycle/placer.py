"""Placement of a unit's pods on feasible nodes. Nothing stays booked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np

from avactl.contracts.pod_annotations import JOB_INDEX
from avactl.hardware.placement.allocation import Booking
from avactl.hardware.placement.gang import Gang, GangMember, contiguous, place_gang
from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import ScoredChoice
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.constraints.constraint import NodeFilter
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.objects.node_rules import NotYetError, RuleError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.gang_domains import gang_domains
from avactl.scheduler.queue.gang_request import gang_of
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup

_RANK_LABELS = (JOB_INDEX.name, "apps.kubernetes.io/pod-index")
"""Labels that differ between equal pods of a gang."""


class StartAttempt(NamedTuple):
    """Pods of a unit that must start together."""

    unit: QueuedPodGroup
    pods: Sequence[PodInfo]
    requests: Mapping[str, Request]
    """Requests by pod UID."""
    nodes: NodeFilter | None
    """Feasible nodes of a single pod; None for a gang."""
    restricted: bool
    """True if constraints restrict the nodes; the members of such a gang are placed one by one."""


class PartialPlacement(NamedTuple):
    """The first pods of a gang that fit one after the other."""

    bookings: Sequence[Booking]
    reason: str
    """Why the next pod does not fit; empty: all fit."""


class Placer:
    """Finds places for pods in the current state of the cache."""

    def __init__(self, cache: ClusterCache, constraints: ConstraintSet) -> None:
        self._cache, self._constraints = cache, constraints

    def request_of(self, pod: PodInfo) -> Request:
        """Return the request of a pod. Raises UnsupportedError, RuleError."""
        if pod.shape.refused:
            raise UnsupportedError(pod.shape.refused)
        if not self._cache.claims.concern(pod):
            return self._cache.requests.request(pod.shape, None)
        self._cache.claims.check_consumers(pod)
        return self._cache.requests.request(pod.shape, self._cache.dra.demand(pod))

    def best_choice(self, pod: PodInfo, request: Request, mask: Mask | None) -> ScoredChoice | None:
        """Return the best node and GPUs for a pod; None if it fits nowhere. Raises RuleError."""
        weights = self._constraints.score_nodes(pod)
        choice = self._cache.choose(pod, request, mask, weights)
        if choice is None or not pod.shape.preferred or not self._breaks_up(request, choice.node):
            return choice
        by_cost = self._cache.choose(pod, request, mask)
        if by_cost is None or self._breaks_up(request, by_cost.node):
            return choice
        # Only the preferences of the pod break up a whole machine, such as a service's to be away from others of its
        # class. It may do so for a second machine of its replicas, which outlive the loss of the first one then.
        broken = ~self._cache.tables.state.all_gpus_free()
        replicas = self._constraints.replica_nodes(pod)
        if replicas is not None and np.count_nonzero(replicas) == 1:
            broken &= ~replicas
        return self._cache.choose(pod, request, intersect_masks(mask, broken), weights) or choice

    def _breaks_up(self, request: Request, node: int) -> bool:
        """Return True if a request takes a part of the GPUs of a node whose GPUs are all free."""
        state = self._cache.tables.state
        free = int(state.gpu_total[node])
        return 0 < request.total_milli < free and bool(state.all_gpus_free()[node])

    def place_pod(self, pod: PodInfo, mask: Mask) -> Booking | None:
        """Return the booking of a pod on the nodes of a mask; None if it fits on none of them."""
        try:
            request = self.request_of(pod)
            choice = self.best_choice(pod, request, intersect_masks(self._constraints.filter_nodes(pod).mask, mask))
        except RuleError:
            return None
        return None if choice is None else choice.booking(request)

    def place(self, attempt: StartAttempt, mask: Mask | None) -> Sequence[Booking] | None:
        """Return a booking for each of the pods on the nodes of a mask; None if they do not fit. Raises RuleError."""
        best, *others = self._cache.tables.trusted_first(attempt.pods[0], [mask])
        bookings = self._place_within(attempt, best)
        if bookings is not None or not others:
            return bookings
        # What does not fit on all nodes, fits on no part of them.
        anywhere = self._place_within(attempt, others.pop())
        if anywhere is None:
            return None
        placements = (self._place_within(attempt, preferred) for preferred in others)
        return next((bookings for bookings in placements if bookings is not None), anywhere)

    def _place_within(self, attempt: StartAttempt, mask: Mask | None) -> Sequence[Booking] | None:
        unit, pods, requests = attempt.unit, attempt.pods, attempt.requests
        if not unit.gang:
            pod = pods[0]
            nodes = attempt.nodes or self._constraints.filter_nodes(pod)
            choice = self.best_choice(pod, requests[pod.uid], intersect_masks(nodes.mask, mask))
            return None if choice is None else [choice.booking(requests[pod.uid])]
        state = self._cache.tables.state
        if attempt.restricted or self._constraints.outweigh_closeness(pods):
            for domain in gang_domains(state, unit, single_domains=True):
                placement = self.place_one_by_one(attempt, intersect_masks(domain, mask))
                if not placement.reason:
                    return self._sort_by_rank(attempt, placement.bookings)
        if attempt.restricted:
            return None
        # Preferences apply only to pod-by-pod placement; if that fails, the gang is placed without them.
        gang, roles = gang_of(unit, pods, requests)
        for domain in gang_domains(state, unit):
            members = place_gang(self._cache.tables.scorer, unit.key, gang, intersect_masks(domain, mask))
            if members is not None:
                return self._release_members(unit, gang, members, roles, pods)
        return None

    def place_one_by_one(
        self,
        attempt: StartAttempt,
        mask: Mask | None,
        explain: Callable[[PodInfo, Request, NodeFilter], str] = lambda *_: "does not fit",
    ) -> PartialPlacement:
        """Place pods one after the other, as each may restrict the nodes of the next, and roll all of it back.

        `explain` is called while the pods before the one that does not fit are booked. Raises RuleError.
        """
        pods = attempt.pods
        bookings: list[Booking] = []
        with Statement(self._cache) as statement:
            for pod in pods:
                try:
                    # Claims that the gang shares may have been allocated for an earlier member.
                    request = self.request_of(pod) if pod.claims else attempt.requests[pod.uid]
                except NotYetError:
                    raise
                except RuleError as error:
                    return PartialPlacement(bookings, str(error))
                nodes = self._constraints.filter_nodes(pod)
                nodes = nodes._replace(mask=intersect_masks(nodes.mask, mask))
                choice = self.best_choice(pod, request, nodes.mask)
                if choice is None:
                    reason = f"{len(bookings)} of {len(pods)} fit; {explain(pod, request, nodes)}"
                    return PartialPlacement(bookings, reason)
                bookings.append(choice.booking(request))
                statement.allocate(pod, bookings[-1])
        return PartialPlacement(bookings, "")

    def first_that_fit(
        self, unit: QueuedPodGroup, pods: Sequence[PodInfo], count: int, deadline: float
    ) -> list[PodInfo]:
        """Return as many pods as fit beside each other, in their order and without those that do not fit.

        Empty if there are fewer than `count`, or if that is not known by the deadline, in monotonic seconds. So does
        kube-scheduler choose among the pods of a PodGroup.
        """
        for domain in gang_domains(self._cache.tables.state, unit, single_domains=True):
            found: list[PodInfo] = []
            with Statement(self._cache) as statement:
                for pod in pods:
                    if monotonic() > deadline:
                        return []
                    try:
                        request = self.request_of(pod)
                        nodes = self._constraints.filter_nodes(pod)
                        choice = self.best_choice(pod, request, intersect_masks(nodes.mask, domain))
                    except RuleError:
                        continue
                    if choice is not None:
                        statement.allocate(pod, choice.booking(request))
                        found.append(pod)
                        if len(found) == count:
                            return found
        return []

    def fits(self, unit: QueuedPodGroup, pods: Sequence[PodInfo]) -> bool:
        """Return True if pods of a gang fit beside each other."""
        try:
            requests = {pod.uid: self.request_of(pod) for pod in pods}
            restricted = any(map(self._constraints.restrict, pods))
            return self.place(StartAttempt(unit, pods, requests, None, restricted), None) is not None
        except RuleError:
            return False

    def _release_members(
        self,
        unit: QueuedPodGroup,
        gang: Gang,
        placed: Sequence[GangMember],
        roles: Sequence[Sequence[PodInfo]],
        pods: Sequence[PodInfo],
    ) -> list[Booking]:
        """Release the bookings of a placed gang, and return them in the order of the pods.

        Pods of a role get its members in the order of their indexes, so that neighbours by rank stay close.
        """
        state = self._cache.tables.state
        bookings: dict[str, Booking] = {}
        for role, role_pods in zip(gang.roles, roles, strict=True):
            members = [member for member in placed if member.role == role.name]
            for pod, member in zip(role_pods, members, strict=True):
                bookings[pod.uid] = state.release((unit.key, role.name, member.number))
        return [bookings[pod.uid] for pod in pods]

    def _sort_by_rank(self, attempt: StartAttempt, bookings: Sequence[Booking]) -> list[Booking]:
        """Exchange the places of equal pods so that the ranks of one domain are neighbours."""
        result = list(bookings)
        equal_pods: dict[Hashable, list[int]] = {}
        for index, pod in enumerate(attempt.pods):
            if not pod.claims:  # the devices of a claim were chosen for this pod
                labels = frozenset(item for item in pod.labels.items() if item[0] not in _RANK_LABELS)
                asked = frozenset(pod.annotations.items())  # constraints read them
                key = (attempt.requests[pod.uid], pod.shape, pod.volumes, labels, asked)
                equal_pods.setdefault(key, []).append(index)
        for indexes in equal_pods.values():
            order = contiguous(self._cache.tables.state, [bookings[index].node for index in indexes])
            for index, other in zip(indexes, order, strict=True):
                result[index] = bookings[indexes[other]]
        return result
