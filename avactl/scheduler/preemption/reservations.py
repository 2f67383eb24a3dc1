"""Reservations for preemptors: resources that are booked as their victims release them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from avactl.hardware.placement.allocation import Booking
from avactl.hardware.topology import gpus_in_mask
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.objects.pod_info import PodInfo


class NominatedPlace(NamedTuple):
    """Nominated node of a pod, and its booking there."""

    pod: PodInfo
    node: str
    booking: Booking


def booking_keys(cache: ClusterCache, pods: Iterable[PodInfo]) -> list[Hashable]:
    """Return the keys of all bookings of pods, including devices of claims."""
    ending = list(pods)
    keys: list[Hashable] = [pod.uid for pod in ending if pod.uid in cache.tables.state.bookings]
    claims = cache.claims.used_only_by(ending)
    return keys + [uid for uid in claims if uid in cache.tables.state.bookings or cache.dra.devices.held(uid)]


class _ExpectedResources:
    """Resources that ending pods will release on one node."""

    def __init__(self, cache: ClusterCache, node: str, will_end: Callable[[PodInfo], bool]) -> None:
        ending = [pod for pod in cache.tables.pods_by_node.get(node, {}).values() if will_end(pod)]
        bookings = [
            held for key in booking_keys(cache, ending) if (held := cache.tables.state.bookings.get(key)) is not None
        ]
        self.amounts = [0] * len(cache.tables.state.resources)
        self.gpus: dict[int, int] = {}
        for booking in bookings:
            self.amounts = [have + more for have, more in zip(self.amounts, booking.amounts, strict=True)]
            for gpu in gpus_in_mask(booking.gpus):
                self.gpus[gpu] = self.gpus.get(gpu, 0) + booking.milli

    def amount(self, index: int, wanted: int) -> int:
        """Take an amount of the resources that will be released; return the rest, which must be free."""
        taken = min(wanted, self.amounts[index])
        self.amounts[index] -= taken
        return wanted - taken

    def gpu(self, gpu: int, wanted: int) -> int:
        """Take milli of a GPU that will be released; return the rest, which must be free."""
        taken = min(wanted, self.gpus.get(gpu, 0))
        self.gpus[gpu] = self.gpus.get(gpu, 0) - taken
        return wanted - taken


class Reservations:
    """Bookings for scheduling units: all that their places need and that victims will not release.

    The devices behind booked GPUs are held too, so that the allocator does not give them away.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._keys_by_unit: dict[str, list[Hashable]] = {}

    def renew(
        self,
        places: Mapping[str, Sequence[NominatedPlace]],
        will_end: Callable[[PodInfo], bool],
        ready: Collection[str],
    ) -> None:
        """Reserve the places of these units, by key, and of no others.

        Victims of `ready` units have ended: their places are booked whole, before those of other units.
        """
        self.release()
        coming: dict[str, _ExpectedResources] = {}
        for unit in sorted(places, key=lambda unit: unit not in ready):
            for place in places[unit]:
                if place.node in self._cache.tables.state.slots:
                    if place.node not in coming:
                        coming[place.node] = _ExpectedResources(self._cache, place.node, will_end)
                    self._reserve_place(unit, place, None if unit in ready else coming[place.node])

    def _reserve_place(self, unit: str, place: NominatedPlace, coming: _ExpectedResources | None) -> None:
        state, held = self._cache.tables.state, self._keys_by_unit.setdefault(unit, [])
        slot, booking = state.slots[place.node], place.booking
        free = state.free[slot].tolist()
        amounts = tuple(
            max(0, min(free[index], coming.amount(index, wanted) if coming else wanted))
            for index, wanted in enumerate(booking.amounts)
        )
        nothing = (0,) * len(amounts)
        parts = [(place.pod.uid, Booking(slot, amounts))]
        for gpu in gpus_in_mask(booking.gpus):
            milli = min(int(state.gpu_free[slot][gpu]), coming.gpu(gpu, booking.milli) if coming else booking.milli)
            if milli > 0:
                parts.append((f"{place.pod.uid}/{gpu}", Booking(slot, nothing, 1 << gpu, milli)))
        for name, part in parts:
            key = ("hold", unit, name)
            state.book(key, part)
            held.append(key)
            if devices := self._cache.claims.gpu_devices(place.node, part.gpus):
                self._cache.dra.devices.hold(str(key), devices)

    def release(self, unit: str | None = None) -> None:
        """Release the reservations of a unit, or of all units."""
        for name in list(self._keys_by_unit) if unit is None else [unit]:
            for key in self._keys_by_unit.pop(name, ()):
                if key in self._cache.tables.state.bookings:
                    self._cache.tables.state.release(key)
                self._cache.dra.devices.release(str(key))

    def release_within(self, statement: Statement) -> None:
        """Release all reservations until the statement is rolled back."""
        for keys in self._keys_by_unit.values():
            for key in keys:
                statement.release(key)

    def forget_all(self) -> None:
        """Forget all reservations after the state was rebuilt without them."""
        for keys in self._keys_by_unit.values():
            for key in keys:
                self._cache.dra.devices.release(str(key))
        self._keys_by_unit.clear()
