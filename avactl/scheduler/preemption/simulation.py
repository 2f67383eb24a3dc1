"""The state as it would be without some pods."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import TracebackType

from avactl.placement.allocation import Booking
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.resource_slices import Result
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption.reservations import sole_claims


class Simulation:
    """A context in which pods are absent, now these and now those; after it all are there. Contexts may be nested."""

    def __init__(self, fleet: ClusterCache, special: bool) -> None:
        """`special`: also what other pods think of them."""
        self._fleet, self._special = fleet, special
        self._gone: dict[PodInfo, None] = {}
        self._bookings: dict[Hashable, Booking] = {}
        """Of absent pods and their claims, by key."""
        self._devices: dict[str, tuple[Result, ...]] = {}
        """Of their claims."""
        self._mark = -1

    def __enter__(self) -> Simulation:
        self._mark = self._fleet.tables.state.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        devices = self._fleet.dra.devices
        for uid, results in self._devices.items():
            devices.hold(uid, results)
        self._fleet.dra.version += bool(self._devices)
        if self._special:
            for pod in self._gone:
                self._fleet.topology.show(pod, pod.node or pod.assumed)
        self._fleet.tables.state.rollback(self._mark)

    def only(self, pods: Iterable[PodInfo]) -> None:
        """These are absent, and no others. The cost is that of the difference to those before."""
        wanted = dict.fromkeys(pods)
        back = [pod for pod in self._gone if pod not in wanted]
        gone = [pod for pod in wanted if pod not in self._gone]
        self._claims(wanted)
        for pod in back:
            del self._gone[pod]
            self._return(pod.uid)
            if self._special:
                self._fleet.topology.show(pod, pod.node or pod.assumed)
        for pod in gone:
            self._gone[pod] = None
            self._take(pod.uid)
            if self._special:
                self._fleet.topology.hide(pod, pod.node or pod.assumed)

    def _take(self, key: str) -> None:
        if key in self._fleet.tables.state.bookings:
            self._bookings[key] = self._fleet.tables.state.release(key)

    def _return(self, key: str) -> None:
        booking = self._bookings.pop(key, None)
        if booking is not None:
            self._fleet.tables.state.book(key, booking, forced=True)

    def _claims(self, pods: Iterable[PodInfo]) -> None:
        """Claims that only these use have nothing."""
        dra, wanted = self._fleet.dra, set(sole_claims(self._fleet, pods))
        back = [uid for uid in self._devices if uid not in wanted]
        gone = [uid for uid in wanted if uid not in self._devices and dra.devices.held(uid)]
        for uid in back:
            dra.devices.hold(uid, self._devices.pop(uid))
            self._return(uid)
        for uid in gone:
            self._devices[uid] = dra.devices.held(uid)
            dra.devices.release(uid)
            self._take(uid)
        dra.version += bool(back or gone)
