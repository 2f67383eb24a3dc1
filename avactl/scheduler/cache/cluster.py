"""Cache of the cluster as the API server reports it, kept in a placement state: nodes, and pods that hold resources.

`ClusterCache` writes the tables (`avactl.scheduler.cache.tables`) and composes the parts that read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import WITHIN
from avactl.hardware.placement.allocation import Booking, BookingError
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Objective, ScoredChoice
from avactl.kube import logs
from avactl.scheduler.cache.claim_bookings import ClaimBookings
from avactl.scheduler.cache.node_offers import NodeOffers
from avactl.scheduler.cache.pod_bookings import PodBookings
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.tables import BASE_RESOURCES, ClusterTables
from avactl.scheduler.cache.team_usage import TeamUsage
from avactl.scheduler.cache.volume_binding import VolumeBinding
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.interfaces import ClaimAllocation
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.device_mask import format_devices
from avactl.scheduler.objects.gang_kinds import gang_of_owner
from avactl.scheduler.objects.gangs import GANG_LABELS
from avactl.scheduler.objects.limits import bounded
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.pod_groups import PodGroup
from avactl.scheduler.objects.pod_info import PodInfo, read_pod

MAX_RESOURCES = 512
"""Maximum number of resources beside CPU, memory, pods and storage; those that most nodes offer are kept."""


class ClusterCache:
    """Nodes, pools and pods. Changes are O(1) in nodes except for new node sets."""

    def __init__(
        self,
        levels: tuple[str, ...],
        dra: DraManager | None = None,
        objective: Objective = "pack",
        owned_claims: bool = True,
    ) -> None:
        """`owned_claims`: PersistentVolumeClaims of ephemeral volumes have an owner reference."""
        self.tables = ClusterTables(levels, objective)
        self.dra = dra or DraManager("")
        self.requests = RequestBuilder(self.tables, self.dra)
        self.claims = ClaimBookings(self.tables, self.dra, self.requests)
        self.volumes = VolumeBinding(self.tables, owned_claims)
        self.quotas = TeamUsage(self.tables, self.claims.held_gpus)
        self._bookings = PodBookings(self.tables, self.requests)
        self._offers = NodeOffers(self.tables, self.dra, self.requests, self._bookings)

    # -- nodes and pools --------------------------------------------------------------------------------------------

    def put_pool(self, pool: ConfiguredPool) -> None:
        """Add or change a pool."""
        if self.tables.pools.get(pool.name) != pool:
            self.tables.pools[pool.name] = pool
            self._apply_pools()

    def drop_pool(self, name: str) -> None:
        """Remove a pool; its nodes remain, without a pool."""
        if self.tables.pools.pop(name, None) is not None:
            self._apply_pools()

    def _apply_pools(self) -> None:
        pools = self.tables.pools.values()
        resources = (pool.resource for pool in pools if pool.resource)
        self.requests.gpu_resources = frozenset({*names.GPU_RESOURCES, *resources})
        self.dra.drivers = frozenset({self.dra.driver, *(pool.driver for pool in pools if pool.driver)})
        self.requests.rdma = frozenset(pool.rdma_resource for pool in pools if pool.rdma_resource)
        self.tables.stale = True

    def put_node(self, item: Mapping[str, Any]) -> None:
        """Add or change a node."""
        tables, info = self.tables, NodeInfo(item)
        before = tables.nodes.get(info.name)
        if before is not None and before.same(info):
            return
        tables.nodes[info.name] = info
        tables.change_epoch += 1
        tables.offer_epoch += 1
        relabelled = before is None or before.labels != info.labels
        if relabelled:
            self.dra.node_changed(info.name)
            tables.node_epoch += 1
        if tables.stale:
            return
        if self._has_new_resources(info):
            tables.stale = True
            return
        slot = self._offers.place(info)
        if before is None and info.devices:
            self.claims.book_devices_of(info.name)
        if tables.stale:
            return
        here = tables.pods_by_node.get(info.name, {}).values()
        if before is None:
            for pod in here:
                self._bookings.book(pod)
        if relabelled:
            for pod in here:
                self.quotas.recount(pod, info.name)
        self.requests.put_node(info, slot)
        tables.nodes_changed()

    def _has_new_resources(self, info: NodeInfo) -> bool:
        """Return True if a node has resources that the state has no column for, and may get one."""
        known = self.tables.state.resources
        if len(known) >= len(BASE_RESOURCES) + MAX_RESOURCES:
            return False
        return any(name not in known and name not in self.requests.gpu_resources for name in info.allocatable)

    def drop_node(self, name: str) -> None:
        """Remove a node. Its pods stay until they are removed too."""
        if self.tables.nodes.pop(name, None) is None:
            return
        self.dra.node_changed(name)
        self.tables.node_epoch += 1
        self.tables.offer_epoch += 1
        if not self.tables.stale:
            self.tables.state.drop_node(name)
            self.tables.nodes_changed()

    def rebuild(self) -> None:
        """Build the state from nodes and pods, after a change of pools, levels or resources."""
        tables = self.tables
        offered = Counter(name for info in tables.nodes.values() for name in info.allocatable)
        for name in (*BASE_RESOURCES, *self.requests.gpu_resources):
            del offered[name]
        known = sorted(offered)
        if len(known) > MAX_RESOURCES:
            known = sorted(sorted(known, key=lambda name: -offered[name])[:MAX_RESOURCES])
            logs.warn("too many resources", offered=len(offered), counted=MAX_RESOURCES)
        resources = (*BASE_RESOURCES, *known)
        same = resources == tables.state.resources
        tables.reset_state(resources)
        for info in tables.nodes.values():
            self._offers.place(info)
        tables.reset_scorer(keep_workload=same)
        tables.node_epoch += 1
        tables.offer_epoch += 1
        self.claims.rebuild()
        for group in tables.pods_by_node.values():
            # If two pods name the same GPU, the one that was bound first gets it.
            for pod in sorted(group.values(), key=lambda pod: pod.started or pod.created):
                try:
                    self._bookings.book(pod)
                except (BookingError, ValueError, OverflowError) as error:
                    logs.error("pod not booked", pod=pod.key, node=pod.node, error=repr(error))
        tables.stale = False
        tables.change_epoch += 1

    # -- pods -------------------------------------------------------------------------------------------------------

    def put_pod(self, item: Mapping[str, Any]) -> PodInfo | None:
        """Add or change a pod; return None if it neither holds resources nor uses this scheduler."""
        tables, metadata = self.tables, item["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        pod = tables.pods.get(key)
        if pod is not None and pod.uid != metadata["uid"]:
            self.drop_pod(key)
            pod = None
        if pod is None:
            spec = item["spec"]
            if not spec.get("nodeName") and spec.get("schedulerName") != names.SCHEDULER_NAME:
                return None
            ended = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            managed = spec.get("schedulerName") == names.SCHEDULER_NAME
            owner = gang_of_owner(metadata, tables.gang_kinds) if managed else None
            in_gang = owner is not None or not GANG_LABELS.isdisjoint(metadata.get("labels") or ())
            if ended and not in_gang and "schedulingGroup" not in spec:
                if managed:
                    tables.failed.put(key, item)
                return None
            pod = tables.pods[key] = read_pod(item, monotonic())
            if pod.pod_group:
                pod.join(tables.pod_groups.add(pod))
            elif owner is not None and not pod.gang:
                pod.join_owner(owner, (metadata.get("annotations") or {}).get(WITHIN.name, ""))
        else:
            labels, deleting = pod.labels, pod.deleting
            # API servers that do not set the generation leave it empty.
            same_spec = metadata.get("generation") == 1
            item, refused = bounded(item, same_spec=same_spec and not pod.shape.refused)
            if not same_spec:
                self._update_requirements(pod, item, refused)
            pod.update(item)
            changed = labels is not pod.labels or deleting != pod.deleting
            if changed and pod.uid in tables.pods_by_node.get(pod.node, ()):
                tables.relabel_pod(pod, labels, deleting)
        self._update_booking(pod)
        tables.update_pod(pod)
        if pod.pod_group:
            tables.pod_groups.note(pod)
        if pod.nominated and pod.waiting:
            tables.nominated.add(pod.gang or pod.uid)
            tables.preemption_marks.add(key)
        elif pod.has_disruption_mark:
            tables.preemption_marks.add(key)
        if pod.unhealthy_device:
            tables.unhealthy_pods.add(key)
        if pod.ended and not self.counts_ended(pod):
            self.drop_pod(key)
        if pod.managed:
            tables.failed.put(key, item)
        return pod

    def counts_ended(self, pod: PodInfo) -> bool:
        """Return True if a pod counts for its gang after its end; also if its PodGroup may still make it one."""
        if pod.gang or not (pod.managed and pod.pod_group):
            return bool(pod.gang)
        members = self.tables.pod_groups[pod.pod_group_key]
        return members is None or members.group is None

    def put_pod_group(self, key: str, group: PodGroup | None) -> None:
        """Add, change or (None) remove a PodGroup, by `namespace/name`, and what it makes of its pods."""
        tables = self.tables
        known = tables.pod_groups[key]
        if known is not None and known.group == group:
            return
        pods = tables.pod_groups.put(key, group)
        tables.join_pods(pods, group)
        for pod in pods:
            if pod.nominated and pod.waiting:
                tables.nominated.add(pod.gang or pod.uid)
            if pod.ended and not self.counts_ended(pod):
                self.drop_pod(pod.key)
        tables.waits.occurred(f"podgroup {key}")

    def pod_keys(self) -> set[str]:
        """Return all pods that a removal concerns, `namespace/name`."""
        return {*self.tables.pods, *self.tables.failed}

    def _update_requirements(self, pod: PodInfo, item: Mapping[str, Any], refused: str) -> None:
        """Take over changed requests of a pod; those of an assumed pod are read once it is bound."""
        shape = pod.asks(item, refused)
        if shape is not pod.shape and (item["spec"].get("nodeName") or not pod.assumed):
            self._release_node(pod)
            pod.shape = shape
            self.tables.change_epoch += 1

    def drop_pod(self, key: str) -> PodInfo | None:
        """Remove a pod and return it."""
        self.tables.failed.drop(key)
        pod = self.tables.pods.pop(key, None)
        if pod is not None:
            self._release_node(pod)
            if pod.pod_group and self.tables.pod_groups.remove(pod):
                self.tables.waits.occurred(f"podgroup {pod.pod_group_key}")
            self.tables.update_pod(pod)
            self.tables.nominated.discard(pod.gang or pod.uid)
            self.tables.preemption_marks.discard(key)
        return pod

    def _update_booking(self, pod: PodInfo) -> None:
        """Book a pod that has a node, and release one that has ended."""
        if pod.ended:
            self._release_node(pod)
            if pod.node:
                pod.assumed = ""
                self.claims.bound(pod)
        elif pod.node:
            if pod.assumed and pod.assumed != pod.node:
                # Another scheduler bound it elsewhere.
                self._release_node(pod)
            elif pod.assumed and pod.devices is not None and self._bookings.devices(pod) != pod.devices:
                self._release_node(pod)
            pod.assumed = ""
            self.claims.bound(pod)
            self._hold_node(pod)

    def _hold_node(self, pod: PodInfo) -> None:
        if pod.uid in self.tables.pods_by_node.get(pod.node, ()):
            return
        self.tables.add_pod(pod, pod.node)
        if not self.tables.stale:
            self._bookings.book(pod)

    def _release_node(self, pod: PodInfo) -> None:
        tables = self.tables
        if not tables.remove_pod(pod, pod.assumed or pod.node):
            return
        tables.change_epoch += 1
        if not tables.stale and pod.uid in tables.state.bookings:
            tables.state.release(pod.uid)

    # -- decisions --------------------------------------------------------------------------------------------------

    def choose(
        self, pod: PodInfo, request: Request, feasible: Mask | None, weights: Floats | None = None
    ) -> ScoredChoice | None:
        """Return the best node and GPUs for a pod; None if it fits nowhere.

        `weights`: weights of nodes by slot, beside those of the pod's node affinity.
        """
        if self.claims.concern(pod):
            return self.claims.choose(pod, request, feasible, weights)
        return self.tables.scorer.choose(request, feasible, weights)

    def take(self, pod: PodInfo, booking: Booking) -> list[ClaimAllocation]:
        """Assume a pod, and return the allocations of its claims. Raises BookingError without any change."""
        name = self.tables.state.names[booking.node]
        assert name is not None
        given: list[ClaimAllocation] = []
        if self.claims.concern(pod):
            demand = self.claims.demand_on(pod, name)
            given = self.claims.allocate(pod, booking)
            if demand.wanted and demand.gpus:
                booking = replace(booking, gpus=0)
        try:
            self.assume(pod, name, booking)
        except BookingError:
            self.claims.forget(pod)
            raise
        return given

    def assume(self, pod: PodInfo, node: str, booking: Booking) -> None:
        """Book a pod before it is bound. Raises BookingError."""
        self.tables.state.book(pod.uid, booking)
        pool = self.tables.pool_of(self.tables.nodes[node]) if booking.gpus else None
        # Where the kubelet chooses, a pod that named GPUs would promise what it does not get.
        named = 0 if pool is not None and pool.machine.kubelet_chooses else booking.gpus
        pod.assumed, pod.devices = node, format_devices(named) or None
        self.tables.add_pod(pod, node)

    def forget(self, pod: PodInfo) -> None:
        """Release an assumed pod whose binding failed."""
        if pod.assumed:
            self._release_node(pod)
            pod.assumed, pod.devices = "", None
        self.claims.forget(pod)
