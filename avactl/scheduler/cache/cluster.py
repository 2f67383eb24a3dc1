"""The cluster as the API server tells it, kept in a placement state: nodes, and every pod that holds a part of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from avactl import names
from avactl.hardware.machine import PcieSwitch
from avactl.hardware.topology import members
from avactl.kube import logs
from avactl.placement.allocation import MAX_GPUS, MILLI_PER_GPU, Booking, BookingError, Node, State
from avactl.placement.request import Request
from avactl.placement.score import Choice, Objective, Scorer
from avactl.scheduler.cache.claim_bookings import ClaimBookings
from avactl.scheduler.cache.pod_topology import PodTopology
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.team_usage import TeamUsage
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.interfaces import ClaimAllocation
from avactl.scheduler.objects.config import Pool
from avactl.scheduler.objects.device_mask import format_devices, parse_devices
from avactl.scheduler.objects.limits import bounded
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.pod_info import PodInfo, read_pod

_BASE = ("cpu", "memory", "pods", "ephemeral-storage")
_MOST_BOOKED = 2**42
"""Most of one resource that is booked for a pod that runs already (4 TiB of memory): the kubelet refuses pods that ask
for more than its node has, but until then they are in the books, and sums must stay within 64 bits."""
_RESOURCES = 512
"""Resources that are counted beside CPU, memory, pods and storage: those that most nodes have."""

Mask = npt.NDArray[np.bool_]


class ClusterCache:
    """Nodes, pools and pods. Changes are O(1) in nodes but for new node sets; not to be used while `stale`."""

    def __init__(self, levels: tuple[str, ...], dra: DraManager | None = None, objective: Objective = "pack") -> None:
        self.levels = levels
        self.objective: Objective = objective
        self.dra = dra or DraManager("")
        self.nodes: dict[str, NodeInfo] = {}
        self.pods: dict[str, PodInfo] = {}
        """All pods that hold something or are ours, by `namespace/name`."""
        self.on_node: dict[str, dict[str, PodInfo]] = {}
        self.pools: dict[str, Pool] = {}
        self.others = PodTopology(self)
        self.stale = True
        """Whether the state must be built anew before it is asked."""
        self.nominated: set[str] = set()
        """Units of pods that wait and for which room is made on a node, by whoever it is."""
        self.remains: set[str] = set()
        """Pods by key that are marked as victims, or nominated: somebody has to see it through, or take it back."""
        self._standing_in: set[str] = set()
        """Nodes on which pods are booked with other GPUs than theirs, which are not there or which others have too."""
        self.change_epoch = 0
        """Counts what may help pods that wait."""
        self.state = State(_BASE, levels)
        self.scorer = Scorer(self.state, objective=self.objective)
        self.asks = RequestBuilder(self)
        self.claims = ClaimBookings(self)
        self.mounts: dict[str, dict[str, str]] = {}
        """Pods (by uid) with their nodes that use a PersistentVolumeClaim, by its `namespace/name`."""
        self.users: dict[str, dict[str, PodInfo]] = {}
        """Pods (by uid) with a node that use a ResourceClaim, by its `namespace/name`."""
        self.mounted: Callable[[str], None] = lambda _: None
        """Told of nodes to which pods with volumes come, or which they leave."""
        self.nodes_changed = 0
        """Counts nodes that came, went, or have other labels or slots."""
        self._awaited: dict[str, set[str]] = {}
        """Units that wait for one thing, by its name."""
        self._waits: dict[str, str] = {}
        """What each of them waits for."""
        self.woken: set[str] = set()
        """Units for which it has come."""
        self.quotas = TeamUsage(self)

    # -- nodes and pools --------------------------------------------------------------------------------------------

    def put_pool(self, pool: Pool) -> None:
        """A pool is there, or has changed."""
        if self.pools.get(pool.name) != pool:
            self.pools[pool.name] = pool
            self._new_pools()

    def drop_pool(self, name: str) -> None:
        """A pool is gone; its nodes are nodes like others then."""
        if self.pools.pop(name, None) is not None:
            self._new_pools()

    def _new_pools(self) -> None:
        ways = self.pools.values()
        self.asks.gpu_resources = frozenset({*names.GPU_RESOURCES, *(pool.resource for pool in ways if pool.resource)})
        self.dra.drivers = frozenset({self.dra.driver, *(pool.driver for pool in ways if pool.driver)})
        self.asks.rdma = frozenset(pool.rdma_resource for pool in ways if pool.rdma_resource)
        self.stale = True

    def put_node(self, item: Mapping[str, Any]) -> None:
        """A node is there, or has changed."""
        info = NodeInfo(item)
        before = self.nodes.get(info.name)
        if before is not None and before.same(info):
            return
        self.nodes[info.name] = info
        self.change_epoch += 1
        if before is None or before.labels != info.labels:
            self.dra.node_changed(info.name)
            self.nodes_changed += 1
        if self.stale:
            return
        known = len(self.state.resources) < len(_BASE) + _RESOURCES  # else more of them would not be counted either
        if known and any(
            name not in self.state.resources and name not in self.asks.gpu_resources for name in info.allocatable
        ):
            self.stale = True
            return
        slot = self._place_node(info)
        # Claims are not known by node: those of one that comes back are booked with all others.
        self.stale |= before is None and bool(info.devices)
        if self.stale:
            return
        here = self.on_node.get(info.name, {}).values()
        if before is None:
            for pod in here:
                self._book(pod)
        if before is None or before.labels != info.labels:
            for pod in here:
                self.quotas.again(pod, info.name)
        self.asks.put_node(info, slot)
        self.others.node_changed()

    def drop_node(self, name: str) -> None:
        """A node is gone. Pods on it stay known until they go too."""
        if self.nodes.pop(name, None) is None:
            return
        self.dra.node_changed(name)
        self.nodes_changed += 1
        if not self.stale:
            self.state.drop_node(name)
            self.others.node_changed()

    def pool_of(self, info: NodeInfo) -> Pool | None:
        """The pool that a node is in."""
        return self.pools.get(info.labels.get(names.POOL_LABEL, ""))

    def model_of(self, node: str) -> str:
        """The GPU model of a node; empty where nobody says."""
        info = self.nodes[node]
        pool = self.pool_of(info)
        return info.labels.get(names.GPU_LABEL) or (pool.machine.gpu if pool else "")

    def held_gpus(self, pod: PodInfo) -> int:
        """GPU milli of a pod that has a node."""
        if pod.claims:
            return MILLI_PER_GPU * (self.claims.gpus(pod) + self.asks.gpu_count(pod.shape))
        return pod.shape.share or MILLI_PER_GPU * self.asks.gpu_count(pod.shape)

    def _offer(self, info: NodeInfo) -> Node:
        pool = self.pool_of(info)
        if pool is not None and pool.method == "devicePlugin":
            info.gpu_resource = pool.resource
        else:
            info.gpu_resource = next(
                (name for name in sorted(self.asks.gpu_resources) if info.allocatable.get(name)), ""
            )
        info.devices = self.dra.number(info.name, info.labels)
        gpus = info.devices or min(info.allocatable.get(info.gpu_resource, 0), MAX_GPUS)
        if info.devices:
            info.gpu_resource = ""
        machine = pool.machine if pool is not None else None
        if machine is not None and (info.differs or machine.gpus != gpus):
            # Its links are not those of its type, so none is counted on: who requires one goes elsewhere. But for
            # GPUs that are gone: those left reach each other through NVSwitch, whichever they are.
            switched = machine.nvlink is not None and machine.nvlink.switch_links > 0
            kept = machine.nvlink if switched and not info.differs and gpus < machine.gpus else None
            apart = tuple(PcieSwitch(gpu, (gpu,)) for gpu in range(gpus))
            machine = replace(machine, gpus=gpus, switches=apart, nvlink=kept, nics=())
        domains: list[tuple[str, ...] | None] = []
        path: tuple[str, ...] = ()
        for level in self.levels:
            value = info.labels.get(level)
            # Racks of different blocks may have the same name.
            path = (*path, value or "")
            domains.append(path if value else None)
        return Node(
            name=info.name,
            amounts=tuple(info.allocatable.get(name, 0) for name in self.state.resources),
            gpus=gpus,
            model=self.model_of(info.name),
            machine=machine,
            domains=tuple(domains),
        )

    def _place_node(self, info: NodeInfo) -> int:
        node, slot = self._offer(info), self.state.slots.get(info.name)
        pods: list[PodInfo] = []
        if slot is not None and self.state.gpu_count[slot] != node.gpus:
            # As when a device plugin starts anew: pods still have those that go now, and when they are back.
            pods = [pod for pod in self.on_node.get(info.name, {}).values() if pod.uid in self.state.bookings]
            for pod in pods:
                self.state.release(pod.uid)
            self._standing_in.discard(info.name)
        try:
            slot = self.state.put_node(node)
        except BookingError:
            # Claims have GPUs that go, or they are kept for others: all is booked anew.
            self.stale = True
            return self.state.slots[info.name]
        for pod in pods:
            self._book(pod)
        return slot

    # -- all anew ---------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Build the state from nodes and pods, after what changes all of it: pools, levels, new resources."""
        offered = Counter(name for info in self.nodes.values() for name in info.allocatable)
        for name in (*_BASE, *self.asks.gpu_resources):
            del offered[name]
        known = sorted(offered)
        if len(known) > _RESOURCES:
            known = sorted(sorted(known, key=lambda name: -offered[name])[:_RESOURCES])
            logs.warn("too many resources", offered=len(offered), counted=_RESOURCES)
        resources = (*_BASE, *known)
        same = resources == self.state.resources
        workload = self.scorer.workload if same else None
        self.state = State(resources, self.levels)
        self.asks.clear()
        self.others.clear()
        self.quotas.clear()
        self._standing_in.clear()
        for info in self.nodes.values():
            self._place_node(info)
        self.scorer = Scorer(self.state, objective=self.objective)
        if workload is not None:
            self.scorer.workload = workload
        self.nodes_changed += 1
        self.claims.rebuild()
        for group in self.on_node.values():
            # Where two name the same GPU, it is that of the pod that was bound first.
            for pod in sorted(group.values(), key=lambda pod: pod.started or pod.created):
                try:
                    self._book(pod)
                except (BookingError, ValueError, OverflowError) as error:
                    logs.error("pod not booked", pod=pod.key, node=pod.node, error=repr(error))
        self.stale = False
        self.change_epoch += 1

    # -- pods -------------------------------------------------------------------------------------------------------

    def put_pod(self, item: Mapping[str, Any]) -> PodInfo | None:
        """A pod is there, or has changed; None for those that matter to nobody here."""
        metadata = item["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        pod = self.pods.get(key)
        if pod is not None and pod.uid != metadata["uid"]:
            self.drop_pod(key)
            pod = None
        if pod is None:
            spec = item["spec"]
            if not spec.get("nodeName") and spec.get("schedulerName") != names.SCHEDULER_NAME:
                return None
            ended = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if ended and names.GANG_LABEL not in (metadata.get("labels") or ()):
                return None
            pod = self.pods[key] = read_pod(item, monotonic())
        else:
            labels, deleting = pod.labels, pod.deleting
            item, refused = bounded(item)
            if metadata.get("generation") != 1:
                self._reshape(pod, item, refused)
            pod.update(item)
            changed = labels is not pod.labels or deleting != pod.deleting
            if changed and pod.uid in self.on_node.get(pod.node, ()):
                self.others.changed(pod, labels, deleting)
        self._account(pod)
        if pod.nominated and pod.waiting:
            self.nominated.add(pod.gang or pod.uid)
            self.remains.add(key)
        elif pod.has_disruption_mark:
            self.remains.add(key)
        if pod.ended and not pod.gang:
            self.drop_pod(key)
        return pod

    def _reshape(self, pod: PodInfo, item: Mapping[str, Any], refused: str) -> None:
        """A pod may ask for something else now. One that is on its way to a node is looked at once it is there."""
        shape = pod.asks(item, refused)
        if shape is not pod.shape and (item["spec"].get("nodeName") or not pod.assumed):
            self._leave(pod)
            pod.shape = shape
            self.change_epoch += 1

    def drop_pod(self, key: str) -> PodInfo | None:
        """A pod is gone."""
        pod = self.pods.pop(key, None)
        if pod is not None:
            self._leave(pod)
            self.nominated.discard(pod.gang or pod.uid)
            self.remains.discard(key)
        return pod

    def _account(self, pod: PodInfo) -> None:
        """Book a pod that has a node, and release one that has ended."""
        if pod.ended:
            self._leave(pod)
            if pod.node:
                pod.assumed = ""
                self.claims.bound(pod)
        elif pod.node:
            if pod.assumed and pod.assumed != pod.node:
                # Somebody else bound it elsewhere.
                self._leave(pod)
            elif pod.assumed and pod.devices is not None and self._booked_devices(pod) != pod.devices:
                self._leave(pod)
            pod.assumed = ""
            self.claims.bound(pod)
            self._enter(pod)

    def assume(self, pod: PodInfo, node: str, booking: Booking) -> None:
        """A pod is to be bound: it holds its part from now on. Raises BookingError."""
        self.state.book(pod.uid, booking)
        pod.assumed, pod.devices = node, format_devices(booking.gpus) or None
        self._note_place(pod, node)

    def forget(self, pod: PodInfo) -> None:
        """A binding failed: the pod holds nothing."""
        if pod.assumed:
            self._leave(pod)
            pod.assumed, pod.devices = "", None
        self.claims.forget(pod)

    def take(self, pod: PodInfo, booking: Booking) -> list[ClaimAllocation]:
        """A pod is to be bound: `assume`, and what its claims get. Raises BookingError."""
        name = self.state.names[booking.node]
        assert name is not None
        given: list[ClaimAllocation] = []
        if pod.claims:
            by_claims = self.claims.counts(pod)
            given = self.claims.give(pod, booking)
            if by_claims:
                booking = replace(booking, gpus=0)
        self.assume(pod, name, booking)
        return given

    def choose(self, pod: PodInfo, request: Request, among: Mask | None) -> Choice | None:
        """The node and GPUs for a pod; None where it fits nowhere."""
        return self.claims.choose(pod, request, among) if pod.claims else self.scorer.choose(request, among)

    def recount(self, claim: str) -> None:
        """A claim, by `namespace/name`, has other devices, or somebody less uses it: whoever is first counts for it."""
        users = self.users.get(claim)
        if users:
            pod = next(iter(users.values()))
            self.quotas.again(pod, pod.assumed or pod.node)
        else:
            self.users.pop(claim, None)

    # -- what comes -------------------------------------------------------------------------------------------------

    def wait_for(self, wanted: str, unit: str) -> None:
        """A unit is to be tried again when this has come; `arrived` says so by the same name.

        It waits for one thing at a time; empty: for nothing.
        """
        before = self._waits.pop(unit, "")
        if before:
            self._awaited[before].discard(unit)
            if not self._awaited[before]:
                del self._awaited[before]
        if wanted:
            self._waits[unit] = wanted
            self._awaited.setdefault(wanted, set()).add(unit)

    def arrived(self, wanted: str) -> None:
        """Something is there, or has changed, that units may wait for."""
        for unit in self._awaited.pop(wanted, ()):
            del self._waits[unit]
            self.woken.add(unit)

    def _enter(self, pod: PodInfo) -> None:
        if pod.uid in self.on_node.get(pod.node, ()):
            return
        self._note_place(pod, pod.node)
        if not self.stale:
            self._book(pod)

    def _note_place(self, pod: PodInfo, node: str) -> None:
        self.on_node.setdefault(node, {})[pod.uid] = pod
        for name in pod.volumes:
            self.mounts.setdefault(f"{pod.namespace}/{name}", {})[pod.uid] = node
            self.mounted(node)
        for _, name in pod.claims:
            self.users.setdefault(f"{pod.namespace}/{name}", {})[pod.uid] = pod
        self.others.entered(pod, node)
        self.quotas.entered(pod, node)

    def _leave(self, pod: PodInfo) -> None:
        node = pod.assumed or pod.node
        here = self.on_node.get(node)
        if here is None or pod.uid not in here:
            return
        del here[pod.uid]
        for name in pod.volumes:
            users = self.mounts.get(f"{pod.namespace}/{name}", {})
            users.pop(pod.uid, None)
            if not users:
                self.mounts.pop(f"{pod.namespace}/{name}", None)
            self.mounted(node)
        if not here:
            del self.on_node[node]
        self.others.left(pod, node)
        self.quotas.left(pod)
        for _, name in pod.claims:
            key = f"{pod.namespace}/{name}"
            if self.users.get(key, {}).pop(pod.uid, None) is not None:
                self.recount(key)
        self.change_epoch += 1
        self.stale |= node in self._standing_in
        if not self.stale and pod.uid in self.state.bookings:
            self.state.release(pod.uid)

    def _book(self, pod: PodInfo) -> None:
        """Account for a pod that runs: its GPUs as its annotation says, else as many as it asked for."""
        slot = self.state.slots.get(pod.assumed or pod.node)
        if slot is None or pod.uid in self.state.bookings:
            return
        amounts = tuple(min(amount, _MOST_BOOKED) for amount in self.asks.amounts(pod.shape))
        milli = pod.shape.share or MILLI_PER_GPU
        mask = self._devices(pod, slot, milli)
        self.state.book(pod.uid, Booking(slot, amounts, mask, milli), forced=True)

    def _devices(self, pod: PodInfo, slot: int, milli: int) -> int:
        """Those that it has. In the place of some that nobody knows, or that are not there now, any that are nobody's:
        of what the node offers it holds as many, whichever they are."""
        count = 1 if pod.shape.share else self.asks.gpu_count(pod.shape)
        if not count:
            return 0
        free = self.state.gpu_free[slot].tolist()
        mine = self._named_devices(pod)
        twice = [gpu for gpu in members(mine) if 0 <= free[gpu] < milli]
        others = [key for key in self.state.held[slot] if self.state.bookings[key].gpus & mine] if twice else []
        if twice:
            logs.error("GPUs are held twice", pod=pod.key, node=pod.node, gpus=twice, others=sorted(map(str, others)))
        found = [gpu for gpu in members(mine) if free[gpu] >= milli]
        if len(found) < mine.bit_count():
            self._standing_in.add(pod.assumed or pod.node)
        if len(found) < count:
            taken = mine
            for other in self.on_node[pod.assumed or pod.node].values():
                if other.devices:
                    taken |= self._named_devices(other)
            more = [gpu for gpu in range(MAX_GPUS) if free[gpu] >= milli and not taken >> gpu & 1]
            found += more[: count - len(found)]
        # By whom nobody told which, or kept for some who wait: those make way when all is booked anew.
        self.stale |= not all(self._entitled(key, pod) for key in others)
        self.stale |= len(found) < count and self._kept(slot)
        return sum(1 << gpu for gpu in found)

    def _named_devices(self, pod: PodInfo) -> int:
        """The GPUs that a pod's annotation names, as a mask; none unless they are as many as it asks for.

        The scheduler writes no others, so somebody else did.
        """
        count = 1 if pod.shape.share else self.asks.gpu_count(pod.shape)
        mask = parse_devices(pod.devices) if pod.managed else 0
        return mask if mask.bit_count() == count else 0

    def _entitled(self, key: Hashable, pod: PodInfo) -> bool:
        """Whether a booking names the GPUs that it has and is older than a pod: then that pod does not get them."""
        holder = self.on_node.get(pod.assumed or pod.node, {}).get(str(key))
        if holder is None:
            return isinstance(key, str)  # a claim's, which come first
        named = self._named_devices(holder) == self.state.bookings[key].gpus
        return named and (holder.started or holder.created) <= (pod.started or pod.created)

    def _kept(self, slot: int) -> bool:
        """Whether something of a node is kept for others."""
        return any(not isinstance(key, str) for key in self.state.held[slot])

    def _booked_devices(self, pod: PodInfo) -> str:
        booking = self.state.bookings.get(pod.uid)
        return format_devices(booking.gpus) if booking else ""

    def mask(self, nodes: Iterable[str]) -> Mask:
        """Nodes by slot."""
        result = np.zeros(len(self.state.free), np.bool_)
        result[[slot for name in nodes if (slot := self.state.slots.get(name)) is not None]] = True
        return result
