"""What is kept free for units that others make room for: booked bit by bit, as it comes free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from avactl.hardware.topology import members
from avactl.placement.allocation import Booking
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.resource_slices import Result
from avactl.scheduler.objects.pod_info import PodInfo


class NominatedPlace(NamedTuple):
    """Where a pod is to go."""

    pod: PodInfo
    node: str
    booking: Booking


def keys_of(fleet: ClusterCache, pods: Iterable[PodInfo]) -> list[Hashable]:
    """The keys of what pods have: bookings, and devices of claims."""
    gone = list(pods)
    found: list[Hashable] = [pod.uid for pod in gone if pod.uid in fleet.tables.state.bookings]
    claims = sole_claims(fleet, gone)
    return found + [uid for uid in claims if uid in fleet.tables.state.bookings or fleet.dra.devices.held(uid)]


def sole_claims(fleet: ClusterCache, pods: Iterable[PodInfo]) -> list[str]:
    """The claims, by uid, of pods that nobody else uses."""
    gone = [pod for pod in pods if pod.claims]
    uids = {pod.uid for pod in gone}
    found: dict[str, None] = {}
    for pod in gone:
        found.update(dict.fromkeys(fleet.claims.given.get(pod.uid, ())))
        for _, name in pod.claims:
            claim = fleet.dra.claims.get(f"{pod.namespace}/{name}")
            if claim is not None and all(each["uid"] in uids for each in claim.reserved):
                found[claim.uid] = None
    return list(found)


class _Coming:
    """What comes free on one node."""

    def __init__(self, fleet: ClusterCache, node: str, on_its_way: Callable[[PodInfo], bool]) -> None:
        going = [pod for pod in fleet.tables.pods_by_node.get(node, {}).values() if on_its_way(pod)]
        bookings = [held for key in keys_of(fleet, going) if (held := fleet.tables.state.bookings.get(key)) is not None]
        self.amounts = [0] * len(fleet.tables.state.resources)
        self.gpus: dict[int, int] = {}
        for booking in bookings:
            self.amounts = [have + more for have, more in zip(self.amounts, booking.amounts, strict=True)]
            for gpu in members(booking.gpus):
                self.gpus[gpu] = self.gpus.get(gpu, 0) + booking.milli

    def amount(self, index: int, wanted: int) -> int:
        """Take of what comes; how much must be free besides."""
        taken = min(wanted, self.amounts[index])
        self.amounts[index] -= taken
        return wanted - taken

    def gpu(self, gpu: int, wanted: int) -> int:
        """The same, milli of a GPU."""
        taken = min(wanted, self.gpus.get(gpu, 0))
        self.gpus[gpu] = self.gpus.get(gpu, 0) - taken
        return wanted - taken


class Reservations:
    """Bookings in the names of units. What their places need and does not come free is taken from what is.

    The devices behind booked GPUs are held too, so that the allocator, which searches devices, leaves them alone.
    """

    def __init__(self, fleet: ClusterCache) -> None:
        self._fleet = fleet
        self._held: dict[str, list[Hashable]] = {}
        self._devices: dict[str, tuple[Result, ...]] = {}
        """By name of the hold."""

    def renew(
        self,
        places: Mapping[str, Sequence[NominatedPlace]],
        on_its_way: Callable[[PodInfo], bool],
        ready: Collection[str],
    ) -> None:
        """Hold for these units, by key, and for no others.

        Nothing more comes for those that are `ready`: theirs is what is free, before others take of it.
        """
        self.release()
        coming: dict[str, _Coming] = {}
        for unit in sorted(places, key=lambda unit: unit not in ready):
            for place in places[unit]:
                if place.node in self._fleet.tables.state.slots:
                    if place.node not in coming:
                        coming[place.node] = _Coming(self._fleet, place.node, on_its_way)
                    self._hold(unit, place, None if unit in ready else coming[place.node])

    def _hold(self, unit: str, place: NominatedPlace, coming: _Coming | None) -> None:
        state, held = self._fleet.tables.state, self._held.setdefault(unit, [])
        slot, booking = state.slots[place.node], place.booking
        free = state.free[slot].tolist()
        amounts = tuple(
            max(0, min(free[index], coming.amount(index, wanted) if coming else wanted))
            for index, wanted in enumerate(booking.amounts)
        )
        nothing = (0,) * len(amounts)
        parts = [(place.pod.uid, Booking(slot, amounts))]
        for gpu in members(booking.gpus):
            milli = min(int(state.gpu_free[slot][gpu]), coming.gpu(gpu, booking.milli) if coming else booking.milli)
            if milli > 0:
                parts.append((f"{place.pod.uid}/{gpu}", Booking(slot, nothing, 1 << gpu, milli)))
        for name, part in parts:
            key = ("hold", unit, name)
            state.book(key, part)
            held.append(key)
            if part.gpus:
                self._take(self._devices, str(key), place.node, part.gpus)

    def release(self, unit: str | None = None) -> None:
        """Hold nothing for a unit, or for any."""
        for each in list(self._held) if unit is None else [unit]:
            for key in self._held.pop(each, ()):
                if key in self._fleet.tables.state.bookings:
                    self._fleet.tables.state.release(key)
                if self._devices.pop(str(key), None):
                    self._fleet.dra.devices.release(str(key))

    def _take(self, held: dict[str, tuple[Result, ...]], name: str, node: str, gpus: int) -> None:
        found = tuple(Result(key, False, False, ()) for key in self._fleet.dra.keys(node, gpus))
        if found:
            held[name] = found
            self._fleet.dra.devices.hold(name, found)

    @contextmanager
    def trial(self, lifted: bool) -> Iterator[Callable[[NominatedPlace], None]]:
        """While it lasts, places that are booked for a trial hold their devices too, once this is called with them;
        `lifted`: and devices that are kept for units are not."""
        devices, tried = self._fleet.dra.devices, dict[str, tuple[Result, ...]]()
        kept = dict(self._devices) if lifted else {}
        for name in kept:
            devices.release(name)
        try:
            yield lambda place: self._take(tried, f"place {place.pod.uid}", place.node, place.booking.gpus)
        finally:
            for name in tried:
                devices.release(name)
            for name, results in kept.items():
                devices.hold(name, results)

    def bookings(self) -> list[Hashable]:
        """The bookings that hold."""
        held = (key for keys in self._held.values() for key in keys)
        return [key for key in held if key in self._fleet.tables.state.bookings]

    def lost(self) -> None:
        """The state was built anew, without holds."""
        self._held.clear()
        for name in self._devices:
            self._fleet.dra.devices.release(name)
        self._devices.clear()
