"""Transaction on the cluster cache: evictions, allocations and reservations that are committed or rolled back.

Source: KAI-Scheduler, pkg/scheduler/framework/statement.go.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import TracebackType

from avactl.hardware.placement.allocation import Booking
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.resource_slices import AllocationResult
from avactl.scheduler.interfaces import ClaimAllocation
from avactl.scheduler.objects.pod_info import PodInfo


class Statement:
    """A context that rolls back its changes at the end unless they were committed. Statements may be nested."""

    def __init__(self, cache: ClusterCache, topology: bool = True) -> None:
        """`topology`: evicted pods no longer count for the affinity, spread, ports and disks of others."""
        self._cache, self._topology = cache, topology
        self._allocated: list[PodInfo] = []
        self._evicted: dict[PodInfo, None] = {}
        self._released: dict[str, Booking] = {}
        """Bookings of evicted pods and of their claims, by UID."""
        self._claims: dict[str, tuple[AllocationResult, ...]] = {}
        """Devices of evicted claims, by UID."""
        self._devices: dict[str, tuple[AllocationResult, ...]] = {}
        """Devices that reservations, by name, held before this statement changed them."""

    def __enter__(self) -> Statement:
        self._mark, self._epoch, self._open = self._cache.tables.state.mark(), self._cache.tables.change_epoch, True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._rollback()

    def commit(self) -> None:
        """Keep all changes; an outer statement can still roll back the bookings."""
        self._open = False
        self._cache.tables.state.keep(self._mark)

    def _rollback(self) -> None:
        cache, self._open = self._cache, False
        cache.tables.state.rollback(self._mark)
        for pod in reversed(self._allocated):
            cache.forget(pod)
        for name, results in (*self._devices.items(), *self._claims.items()):
            self._set_devices(name, results)
        cache.dra.version += bool(self._claims)
        if self._topology:
            for pod in self._evicted:
                cache.tables.show_pod(pod, pod.node or pod.assumed)
        cache.tables.change_epoch = self._epoch

    # -- operations -------------------------------------------------------------------------------------------------

    def allocate(self, pod: PodInfo, booking: Booking) -> list[ClaimAllocation]:
        """Assume a pod, and return the allocations of its claims. Raises BookingError."""
        given = self._cache.take(pod, booking)
        self._allocated.append(pod)
        return given

    def reserve(self, pod: PodInfo, node: str, booking: Booking) -> None:
        """Book a nominated pod's place on a node, and the devices behind its GPUs. Raises BookingError."""
        self._cache.tables.state.book(("place", pod.uid), booking)
        self._reserve_devices(f"place {pod.uid}", self._cache.claims.gpu_devices(node, booking.gpus))

    def release(self, key: Hashable) -> None:
        """Release a reservation and its devices, by the key of its booking."""
        if key in self._cache.tables.state.bookings:
            self._cache.tables.state.release(key)
        self._reserve_devices(str(key), ())

    def evict_only(self, pods: Iterable[PodInfo]) -> None:
        """Evict these pods, and restore all other evicted pods.

        The cost is proportional to the difference, so searches for the fewest victims can call it often.
        """
        tables, wanted = self._cache.tables, dict.fromkeys(pods)
        self._evict_claims(wanted)
        for pod in [pod for pod in self._evicted if pod not in wanted]:
            del self._evicted[pod]
            self._restore_booking(pod.uid)
            if self._topology:
                tables.show_pod(pod, pod.node or pod.assumed)
        for pod in [pod for pod in wanted if pod not in self._evicted]:
            self._evicted[pod] = None
            self._release_booking(pod.uid)
            if self._topology:
                tables.hide_pod(pod, pod.node or pod.assumed)

    def _evict_claims(self, pods: Iterable[PodInfo]) -> None:
        """Release the devices of claims that only these pods use, and restore those of all other claims."""
        dra, wanted = self._cache.dra, self._cache.claims.used_only_by(pods)
        restored = [uid for uid in self._claims if uid not in wanted]
        evicted = [uid for uid in wanted if uid not in self._claims and dra.devices.held(uid)]
        for uid in restored:
            self._set_devices(uid, self._claims.pop(uid))
            self._restore_booking(uid)
        for uid in evicted:
            self._claims[uid] = dra.devices.held(uid)
            self._set_devices(uid, ())
            self._release_booking(uid)
        dra.version += bool(restored or evicted)

    def _release_booking(self, key: str) -> None:
        if key in self._cache.tables.state.bookings:
            self._released[key] = self._cache.tables.state.release(key)

    def _restore_booking(self, key: str) -> None:
        booking = self._released.pop(key, None)
        if booking is not None:
            self._cache.tables.state.book(key, booking, forced=True)

    def _reserve_devices(self, name: str, results: tuple[AllocationResult, ...]) -> None:
        self._devices.setdefault(name, self._cache.dra.devices.held(name))
        self._set_devices(name, results)

    def _set_devices(self, name: str, results: tuple[AllocationResult, ...]) -> None:
        if results:
            self._cache.dra.devices.hold(name, results)
        else:
            self._cache.dra.devices.release(name)
