"""Bookings of running pods: the GPUs in their annotation, otherwise the number they requested."""

from __future__ import annotations

from collections.abc import Hashable

from avactl.hardware.placement.allocation import MAX_GPUS, MILLI_PER_GPU, Booking
from avactl.hardware.topology import gpus_in_mask
from avactl.kube import logs
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.objects.device_mask import format_devices, parse_devices
from avactl.scheduler.objects.pod_info import PodInfo

MAX_BOOKED_AMOUNT = 2**42
"""Largest amount of one resource that is booked for a pod that runs already (4 TiB of memory). The kubelet refuses
pods that ask for more than their node has, but until then they are booked, and sums must stay within 64 bits."""


class PodBookings(ChangeListener):
    """Bookings of bound pods in the placement state; annotations are not trusted."""

    def __init__(self, tables: ClusterTables, requests: RequestBuilder) -> None:
        self._tables, self._requests = tables, requests
        self._substituted: set[str] = set()
        """Nodes with pods booked with substitutes or too few GPUs, as theirs are absent or held by another pod."""
        tables.subscribe(self)

    def state_cleared(self) -> None:
        """Forget substitutions, before all pods are booked again."""
        self._substituted.clear()

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Request a rebuild if another pod can now get the GPUs in its annotation, or as many as it requests."""
        self._tables.stale |= node in self._substituted

    def book(self, pod: PodInfo) -> None:
        """Book a running pod, unless it is already booked or its node is unknown."""
        state = self._tables.state
        slot = state.slots.get(pod.assumed or pod.node)
        if slot is None or pod.uid in state.bookings:
            return
        amounts = self._requests.amounts(pod.shape)
        if max(amounts) > MAX_BOOKED_AMOUNT:
            amounts = tuple(min(amount, MAX_BOOKED_AMOUNT) for amount in amounts)
        milli = pod.shape.share or MILLI_PER_GPU
        mask = self._gpus_to_book(pod, slot, milli)
        state.book(pod.uid, Booking(slot, amounts, mask, milli), forced=True)

    def release_all(self, node: str) -> list[PodInfo]:
        """Release the bookings of a node's pods; return the pods that had one."""
        state = self._tables.state
        pods = [pod for pod in self._tables.pods_by_node.get(node, {}).values() if pod.uid in state.bookings]
        for pod in pods:
            state.release(pod.uid)
        self._substituted.discard(node)
        return pods

    def devices(self, pod: PodInfo) -> str:
        """Return the GPUs booked for a pod, in annotation format."""
        booking = self._tables.state.bookings.get(pod.uid)
        return format_devices(booking.gpus) if booking else ""

    def _gpus_to_book(self, pod: PodInfo, slot: int, milli: int) -> int:
        """Return the mask of GPUs to book for a pod.

        Free GPUs are substituted for unknown or absent ones, because the pod holds that number of the node's GPUs.
        """
        count = self._gpu_count(pod)
        if not count:
            return 0
        tables, state, node = self._tables, self._tables.state, pod.assumed or pod.node
        free, faulty = state.gpu_free[slot].tolist(), int(state.faulty[slot])
        mine = self._named_devices(pod, count)
        twice = [gpu for gpu in gpus_in_mask(mine) if 0 <= free[gpu] < milli]
        others = [key for key in state.held[slot] if state.bookings[key].gpus & mine] if twice else []
        if twice:
            logs.error("GPUs are held twice", pod=pod.key, node=pod.node, gpus=twice, others=sorted(map(str, others)))
        booked = [gpu for gpu in gpus_in_mask(mine) if free[gpu] >= milli or faulty >> gpu & 1]
        if len(booked) < mine.bit_count():
            self._substituted.add(node)
        if len(booked) < count:
            taken = mine
            for other in tables.pods_by_node[node].values():
                if other.devices:
                    taken |= self._named_devices(other, self._gpu_count(other))
            more = [gpu for gpu in range(MAX_GPUS) if free[gpu] >= milli and not taken >> gpu & 1]
            booked += more[: count - len(booked)]
        if len(booked) < count:
            self._substituted.add(node)
        # Pods that name no GPUs, and reservations for waiting units, give way when the state is rebuilt.
        tables.stale |= not all(self._is_entitled(key, pod) for key in others)
        tables.stale |= len(booked) < count and any(not isinstance(key, str) for key in state.held[slot])
        return sum(1 << gpu for gpu in booked)

    def _gpu_count(self, pod: PodInfo) -> int:
        """Return the GPUs that a pod requests by a resource or a share."""
        if pod.shape.share:
            return 1
        return self._requests.gpu_count(pod.shape, pod.extended.resources if pod.extended is not None else ())

    @staticmethod
    def _named_devices(pod: PodInfo, count: int) -> int:
        """Return the mask of GPUs that a pod's annotation names; 0 unless they are as many as it asks for.

        The scheduler never writes a different annotation, so one that differs is not its own.
        """
        mask = parse_devices(pod.devices) if pod.managed else 0
        return mask if mask.bit_count() == count else 0

    def _is_entitled(self, key: Hashable, pod: PodInfo) -> bool:
        """Return True if a booking names its GPUs and is older than a pod, which does not get them then."""
        holder = self._tables.pods_by_node.get(pod.assumed or pod.node, {}).get(str(key))
        if holder is None:
            return isinstance(key, str)  # ResourceClaims, which come first
        named = self._named_devices(holder, self._gpu_count(holder)) == self._tables.state.bookings[key].gpus
        return named and (holder.started or holder.created) <= (pod.started or pod.created)
