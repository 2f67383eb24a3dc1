"""ResourceClaims in the placement state: GPUs that they hold, nodes that can satisfy them, and their allocations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from avactl.hardware.placement.allocation import MILLI_PER_GPU, Booking, BookingError
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import ScoredChoice
from avactl.hardware.topology import LEVELS
from avactl.kube import logs
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.dra.allocator import AllocatedDevice, StuckError
from avactl.scheduler.dra.extended_resources import lacking_on
from avactl.scheduler.dra.manager import ClaimDemand, DraManager, Offers
from avactl.scheduler.dra.resource_claim import ResourceClaim, older
from avactl.scheduler.dra.resource_slices import AllocationResult, Key
from avactl.scheduler.interfaces import ClaimAllocation
from avactl.scheduler.objects.node_rules import ReportedWaitError, RuleError, node_selector
from avactl.scheduler.objects.pod_info import ExtendedClaim, PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

MAX_MASKS = 512
MAX_NODES_TRIED = 16
"""Maximum number of nodes tried for a pod that requires linked GPUs from the allocator."""

MAX_CONSUMERS = 256
"""Maximum pods that can share a claim. Source: resource.k8s.io/v1, ResourceClaimReservedForMaxSize."""


class ClaimBookings:
    """ResourceClaims of a cluster."""

    def __init__(self, tables: ClusterTables, dra: DraManager, requests: RequestBuilder) -> None:
        self._tables, self._dra, self._requests = tables, dra, requests
        self.given: dict[str, tuple[str, ...]] = {}
        """UIDs of claims that are being allocated, by the UID of the pod; the API server has not reported them yet."""
        self._masks: dict[str, tuple[Offers, int, Mask]] = {}
        self._lacking: dict[tuple[str, ...], tuple[int, dict[tuple[str, ...], Mask]]] = {}
        """Nodes by those of some extended resources that no device plugin offers there, and the epoch of that."""

    # -- objects ----------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or change a ResourceClaim."""
        claim = ResourceClaim(item)
        before = self._dra.claims.get(claim.key)
        if before is not None and before.uid != claim.uid:
            if before.exists or before.extended_for != claim.extended_for:
                self.drop(claim.key)
            else:
                self._created(before, claim)
        elif before is not None and older(claim, before):
            return  # the watch lags behind the response to a request
        self._dra.claims[claim.key] = claim
        if claim.extended_for and (claim.allocated or claim.extended_for not in self._dra.extended):
            self._dra.extended[claim.extended_for] = claim.key
        self._dra.version += 1
        held = self._dra.devices.held(claim.uid)
        if claim.allocated:
            self._dra.giving.pop(claim.uid, None)
            self._hold_devices(claim.uid, claim.results)
        elif claim.uid not in self._dra.giving:
            self._release_devices(claim.uid)
        if self._dra.devices.held(claim.uid) != held:
            self._tables.claim_changed(claim.key)
        self._tables.waits.occurred(f"claim {claim.key}")

    def drop(self, key: str) -> None:
        """Remove a ResourceClaim."""
        claim = self._dra.claims.pop(key, None)
        if claim is not None:
            self._dra.version += 1
            if self._dra.extended.get(claim.extended_for) == key:
                del self._dra.extended[claim.extended_for]
            self._dra.giving.pop(claim.uid, None)
            self._release_devices(claim.uid)
            self._tables.claim_changed(key)
            self._tables.waits.occurred(f"claim {key}")

    def known(self) -> list[str]:
        """Return the claims, `namespace/name`, that the API server has."""
        return [key for key, claim in self._dra.claims.items() if claim.exists]

    def _created(self, before: ResourceClaim, claim: ResourceClaim) -> None:
        """Pass on the devices assumed for a claim that has been created meanwhile, and has its UID now."""
        results, allocation = self._dra.devices.held(before.uid), self._dra.giving.pop(before.uid, None)
        if before.uid in self._tables.state.bookings:
            self._tables.state.release(before.uid)
        self._dra.devices.release(before.uid)
        if allocation is not None:
            self._dra.giving[claim.uid] = allocation
            self._hold_devices(claim.uid, results)
        for pod, uids in self.given.items():
            if before.uid in uids:
                self.given[pod] = tuple(claim.uid if uid == before.uid else uid for uid in uids)

    def rebuild(self) -> None:
        """Book the devices of all claims in a new state."""
        for claim in self._dra.claims.values():
            self._book_gpus(claim.uid, self._dra.devices.held(claim.uid))

    def book_devices_of(self, node: str) -> None:
        """Book the devices of claims on a node that was added, perhaps again."""
        for claim in self._dra.claims.values():
            results = self._dra.devices.held(claim.uid)
            if any((place := self._dra.place(result.key)) is not None and place[0] == node for result in results):
                self._book_gpus(claim.uid, results)

    def _hold_devices(self, uid: str, results: tuple[AllocationResult, ...]) -> None:
        if self._dra.devices.held(uid) != results:
            self._dra.devices.hold(uid, results)
            if not self._tables.stale:
                self._book_gpus(uid, results)

    def _book_gpus(self, uid: str, results: tuple[AllocationResult, ...]) -> None:
        """Book the GPUs among a claim's devices, so that the placement engine does not give them away."""
        state, by_node = self._tables.state, dict[str, int]()
        for key, admin, _, _ in results:
            place = self._dra.place(key)
            if place is not None and not admin:
                by_node[place[0]] = by_node.get(place[0], 0) | 1 << place[1]
        if uid in state.bookings:
            state.release(uid)
        for node, gpus in by_node.items():
            if node in state.slots:
                booking = Booking(state.slots[node], (0,) * len(state.resources), gpus)
                try:
                    state.book(uid, booking, forced=True)
                except BookingError as error:
                    logs.error("device allocated twice", claim=uid, error=str(error))
                    self._tables.stale = True  # devices of claims take precedence over reservations

    def _release_devices(self, uid: str) -> None:
        if self._dra.devices.release(uid):
            if uid in self._tables.state.bookings:
                self._tables.state.release(uid)
            self._tables.change_epoch += 1

    def gpu_count(self, pod: PodInfo) -> int:
        """Return the whole GPUs that a pod's claims hold."""
        devices = (device for claim in self.counted_claims(pod) for device in self._dra.devices.held(claim.uid))
        return sum(not device.admin and self._dra.counts(device.key) for device in devices)

    def held_gpus(self, pod: PodInfo) -> int:
        """Return the GPUs, in milli, that a bound pod holds through its claims and its requests."""
        if pod.claims:
            claimed = pod.extended.resources if pod.extended is not None else ()
            return MILLI_PER_GPU * (self.gpu_count(pod) + self._requests.gpu_count(pod.shape, claimed))
        return pod.shape.share or MILLI_PER_GPU * self._requests.gpu_count(pod.shape)

    def counted_claims(self, pod: PodInfo) -> Iterator[ResourceClaim]:
        """Yield the claims counted for a pod. A shared claim counts for its first pod with a node."""
        for claim in self.claims_of(pod):
            if next(iter(self._tables.claim_users.get(claim.key, ())), pod.uid) == pod.uid:
                yield claim

    def concern(self, pod: PodInfo) -> bool:
        """Return True if a pod has claims, or gets one on nodes without a device plugin."""
        return bool(pod.claims or self._dra.backed(pod.shape))

    def used_only_by(self, pods: Iterable[PodInfo]) -> list[str]:
        """Return the claims, by UID, that these pods use and no others."""
        users = [pod for pod in pods if pod.claims]
        uids = {pod.uid for pod in users}
        claims: dict[str, None] = {}
        for pod in users:
            claims.update(dict.fromkeys(self.given.get(pod.uid, ())))
            for claim in self.claims_of(pod):
                if all(consumer["uid"] in uids for consumer in claim.reserved):
                    claims[claim.uid] = None
        return list(claims)

    def gpu_devices(self, node: str, gpus: int) -> tuple[AllocationResult, ...]:
        """Return the devices of a GPU mask as a reservation holds them: entire and exclusive."""
        return tuple(AllocationResult(key, False, False, ()) for key in self._dra.keys(node, gpus))

    def claims_of(self, pod: PodInfo) -> list[ResourceClaim]:
        """Return the known ResourceClaims of a pod."""
        claims = (self._dra.claims.get(f"{pod.namespace}/{name}") for _, name in pod.claims)
        return [claim for claim in claims if claim is not None]

    # -- feasible nodes --------------------------------------------------------------------------------------

    def choose(
        self, pod: PodInfo, request: Request, feasible: Mask | None, preferred: Floats | None
    ) -> ScoredChoice | None:
        """Return the best node and GPUs for a pod with claims, as `Scorer.choose`."""
        demand = self._dra.demand(pod)
        if not demand.resources or any(claim.extended_for for claim in demand.held):
            return self._choose(pod, demand, request, feasible, preferred)
        # Nodes with a device plugin for one of the resources need another claim than those without, or none.
        nodes = self._nodes_by_lacking(self._dra.backed(pod.shape))
        best: ScoredChoice | None = None
        for resources, mask in nodes.items():
            if resources == demand.resources:
                # On nodes with device plugins, the same request is for GPUs of these.
                choice = self._choose(pod, demand, request, feasible, preferred, mask)
            elif not resources and self._requests.is_united(pod.shape, demand):
                continue
            else:
                try:
                    other = self._dra.demand(pod, resources)
                    its_request = self._requests.request(pod.shape, other)
                except RuleError:
                    continue  # such as GPUs of a device plugin beside those of other claims
                choice = self._choose(pod, other, its_request, intersect_masks(feasible, mask), preferred)
            if choice is not None and (best is None or choice.score < best.score):
                best = choice
        if demand.resources not in nodes and self._requests.is_united(pod.shape, demand):
            return self._tables.scorer.choose(request, feasible, preferred)
        return best

    def _nodes_by_lacking(self, resources: tuple[str, ...]) -> dict[tuple[str, ...], Mask]:
        """Return the nodes by those of the resources that no device plugin offers there."""
        now = self._tables.offer_epoch
        known = self._lacking.get(resources)
        if known is None or known[0] != now:
            nodes: dict[tuple[str, ...], list[str]] = {}
            for info in self._tables.nodes.values():
                nodes.setdefault(lacking_on(resources, info.allocatable), []).append(info.name)
            if len(self._lacking) > MAX_MASKS:
                self._lacking.clear()
            masks = {each: self._tables.mask(names) for each, names in nodes.items()}
            known = self._lacking[resources] = (now, masks)
        return known[1]

    def nodes_without_plugin(self, pod: PodInfo) -> Mask | None:
        """Return the nodes where a pod needs a claim for extended resources, if its status names one; None: all.

        The status cannot be taken back, and the kubelet of any other node would look for that claim.
        """
        resources = self._dra.backed(pod.shape)
        if not (pod.told_extended and resources):
            return None
        found = np.zeros(len(self._tables.state.free), np.bool_)
        for lacking, mask in self._nodes_by_lacking(resources).items():
            if lacking:
                found |= mask
        return found

    def _choose(
        self,
        pod: PodInfo,
        demand: ClaimDemand,
        request: Request,
        feasible: Mask | None,
        preferred: Floats | None,
        searched: Mask | None = None,
    ) -> ScoredChoice | None:
        """`searched`: the nodes on which the allocator may search devices; None: all."""
        scorer = self._tables.scorer
        if not demand.wanted or demand.exact:
            choice = scorer.choose(request, feasible, preferred)
            if choice is not None or not demand.wanted:
                return choice
        mask = self._feasible_nodes(demand)
        if searched is not None:
            mask &= searched
        if not mask.any():
            return None
        if feasible is not None:
            mask &= feasible
        odd = self._requests.request_on_any_device(request, pod.shape) if demand.exact else request
        if demand.gpus and not demand.counted:
            odd = replace(odd, gpus=0, required=False)
        for _ in range(MAX_NODES_TRIED):
            choice = scorer.choose(odd, mask, preferred)
            if not demand.gpus:
                return choice
            if choice is None and odd.gpus:
                # GPUs without numbers cannot be booked in the state.
                odd = replace(odd, gpus=0, required=False)
                choice = scorer.choose(odd, mask, preferred)
            if choice is None:
                return None
            gpus = self._gpu_mask(self._search_devices(demand, choice.node, choice.gpus))
            if self._are_linked(request, choice.node, gpus):
                return choice._replace(gpus=gpus)
            mask[choice.node] = False
        return None

    def _are_linked(self, request: Request, node: int, gpus: int) -> bool:
        if not request.required or gpus.bit_count() < 2:
            return True
        state = self._tables.state
        return int(state.kinds[int(state.kind[node])].levels[gpus]) <= LEVELS.index(request.link)

    def _feasible_nodes(self, demand: ClaimDemand) -> Mask:
        """Return the nodes on which the allocator can satisfy a demand."""
        offers = self._dra.offers(demand, self._tables.nodes)
        now = self._tables.node_epoch
        known = self._masks.get(demand.key)
        if known is None or known[0] is not offers or known[1] != now or offers.changed is None:
            if len(self._masks) > MAX_MASKS:
                self._masks.clear()
            known = self._masks[demand.key] = (offers, now, self._tables.mask(offers.yes))
        else:
            for node in offers.changed:
                slot = self._tables.state.slots.get(node)
                if slot is not None:
                    known[2][slot] = node in offers.yes
        offers.changed = []
        return known[2].copy()

    def _search_devices(self, demand: ClaimDemand, slot: int, gpus: int) -> list[list[AllocatedDevice]]:
        name = self._tables.state.names[slot]
        assert name is not None
        claims = tuple(parsed for _, parsed in demand.wanted)
        prefer: set[Key] = set(self._dra.keys(name, gpus))
        found = self._dra.search(name, self._tables.nodes[name].labels, claims, prefer)
        if found is None:
            raise StuckError("the free devices were taken meanwhile")
        return found

    def _gpu_mask(self, found: list[list[AllocatedDevice]]) -> int:
        gpus = 0
        for claim in found:
            for wanted, device, _ in claim:
                place = self._dra.place(device.key)
                if place is not None and not wanted.admin:
                    gpus |= 1 << place[1]
        return gpus

    def reachable_nodes(self, demand: ClaimDemand) -> Mask | None:
        """Return the nodes that reach the devices of a pod's allocated claims; None: all."""
        result: Mask | None = None
        for claim in demand.held:
            allocation = claim.allocation or self._dra.giving.get(claim.uid) or {}
            if allocation.get("nodeSelector"):
                mask = self._tables.mask(self._selected_node_names(allocation["nodeSelector"]))
                result = mask if result is None else result & mask
        return result

    def _selected_node_names(self, selector: Mapping[str, Any]) -> list[str]:
        terms = selector["nodeSelectorTerms"]
        if len(terms) == 1 and not terms[0].get("matchExpressions"):
            names: list[str] = [name for field in terms[0]["matchFields"] for name in field["values"]]
            if len(names) == 1 and terms[0]["matchFields"][0]["operator"] == "In":
                return names  # as nearly always
        match = node_selector(selector)
        return [info.name for info in self._tables.nodes.values() if match(info.name, info.labels)]

    def check_consumers(self, pod: PodInfo) -> None:
        """Raise ReportedWaitError if a claim of a pod has all the consumers that it can have.

        Placed pods count before the claim is reserved for them, or the last ones of a gang could not be bound.
        """
        for claim in self.claims_of(pod):
            reserved = {consumer["uid"] for consumer in claim.reserved}
            consumers = reserved | self._tables.claim_users.get(claim.key, {}).keys()
            if len(consumers - {pod.uid}) >= MAX_CONSUMERS:
                message = f"ResourceClaim {claim.name} is in use by {MAX_CONSUMERS} pods, which is the limit"
                raise ReportedWaitError(message, f"claim {claim.key}", WaitReason.UNSCHEDULABLE)

    def needs_allocator(self, pod: PodInfo) -> bool:
        """Return True if only the allocator can place a pod: its claims are shared, or request more than GPUs."""
        if not self.concern(pod):
            return False
        demand = self._dra.demand(pod)
        if demand.held or (demand.wanted and not demand.exact):
            return True
        if demand.resources:
            if not self._requests.is_united(pod.shape, demand):
                return True
            if () in self._nodes_by_lacking(demand.resources):
                return False
        if any(not each.template for each in self.claims_of(pod)):
            return True
        nodes = self._tables.nodes.values()
        return bool(demand.wanted) and not any(self._dra.simple(info.name, info.labels, demand.key) for info in nodes)

    def demand_on(self, pod: PodInfo, node: str) -> ClaimDemand:
        """Return the demand of a pod's claims on a node."""
        resources = lacking_on(self._dra.backed(pod.shape), self._tables.nodes[node].allocatable)
        return self._dra.demand(pod, resources)

    def requested_gpus(self, pod: PodInfo) -> int:
        """Return the whole GPUs that a pending pod requests. Raises RuleError."""
        demand = self._dra.demand(pod) if self.concern(pod) else None
        if demand is None:
            return self._requests.gpu_count(pod.shape)
        return demand.gpus + self._requests.gpu_count(pod.shape, demand.resources)

    def explain(self, pod: PodInfo, request: Request) -> tuple[Request, Mask, str] | None:
        """Return the request, the nodes that claims allow, and reasons for the others, unless the engine knows them."""
        demand = self._dra.demand(pod)
        nodes = self._tables.nodes.values()
        united = self._requests.is_united(pod.shape, demand)
        if not demand.wanted or (
            demand.exact
            and (
                any(self._dra.simple(info.name, info.labels, demand.key) for info in nodes)
                or (united and () in self._nodes_by_lacking(demand.resources))
            )
        ):
            return None
        offers = self._dra.offers(demand, self._tables.nodes)
        mask = self._tables.mask(offers.yes)
        plugins = self._nodes_by_lacking(demand.resources).get(()) if demand.resources else None
        if plugins is not None:
            mask |= plugins
        lost = len(self._tables.nodes) - int(mask.sum())
        words = [f"{lost} without free devices for its ResourceClaim"] if lost else []
        words += sorted(set(offers.words.values()))[:1]
        if demand.gpus:
            request = self._requests.request_on_any_device(request, pod.shape)
            request = replace(request, gpus=0, required=False, models=frozenset())
        return request, mask, ", ".join(words)

    # -- allocations ----------------------------------------------------------------------------------------------

    def allocate(self, pod: PodInfo, booking: Booking) -> list[ClaimAllocation]:
        """Book the devices of a decision; return the allocation of each claim. Raises BookingError."""
        name = self._tables.state.names[booking.node]
        assert name is not None
        demand = self.demand_on(pod, name)
        result = [self._allocation_of(claim, self._dra.giving.get(claim.uid), demand) for claim in demand.held]
        if demand.wanted:
            labels = self._tables.nodes[name].labels
            if demand.exact and self._dra.simple(name, labels, demand.key):
                found = self._dra.split(demand, name, booking.gpus)
                taken = [
                    each.device.key for mine in found for each in mine if self._dra.devices.in_use(each.device.key)
                ]
                if taken:
                    raise BookingError(f"{pod.key}: device {'/'.join(taken[0])} is in use")
            else:
                found = self._search_devices(demand, booking.node, booking.gpus)
            for (claim, _), mine in zip(demand.wanted, found, strict=True):
                allocation = self._dra.allocation(claim, mine, name)
                self._dra.giving[claim.uid] = allocation
                self._hold_devices(
                    claim.uid, tuple(AllocationResult.parse(each) for each in allocation["devices"]["results"])
                )
                result.append(self._allocation_of(claim, allocation, demand))
                if not claim.exists:
                    self._dra.claims[claim.key] = claim
            self._dra.version += 1
        for given in result:
            if given.mappings:
                pod.set_extended(ExtendedClaim(given.claim.name, frozenset(demand.resources)))
        self.given[pod.uid] = tuple(claim.uid for claim, allocation, _ in result if allocation is not None)
        return result

    @staticmethod
    def _allocation_of(claim: ResourceClaim, allocation: dict[str, Any] | None, demand: ClaimDemand) -> ClaimAllocation:
        return ClaimAllocation(claim, allocation, demand.mappings if claim.extended_for else ())

    def forget(self, pod: PodInfo) -> None:
        """Release the devices assumed for a pod whose binding failed."""
        if pod.extended is not None:
            claim = self._dra.claims.get(f"{pod.namespace}/{pod.extended.name}")
            if claim is not None and not claim.exists:
                del self._dra.claims[claim.key]
            pod.set_extended(None)
        mine = self.given.pop(pod.uid, ())
        for uid in mine:
            shared = any(uid in others for others in self.given.values())
            if not shared and self._dra.giving.pop(uid, None) is not None:
                self._dra.version += 1
                self._release_devices(uid)

    def bound(self, pod: PodInfo) -> None:
        """Note that the allocations for a pod are complete."""
        self.given.pop(pod.uid, None)
