"""Reservations for preemptors: resources that are booked as their victims release them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    def __init__(self, cache: ClusterCache, node: str, ending: Collection[PodInfo]) -> None:
        pods = [pod for pod in cache.tables.pods_by_node.get(node, {}).values() if pod in ending]
        bookings = [
            held for key in booking_keys(cache, pods) if (held := cache.tables.state.bookings.get(key)) is not None
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
        self._renewed: dict[str, tuple[Sequence[NominatedPlace], bool]] = {}
        """Places of each unit, and whether it was ready, when its reservations were renewed last."""
        self._position = -1
        """Position in the state's journal of the last renewal."""
        self._ending: set[PodInfo] = set()
        """Pods that were expected to end at the last renewal."""

    def renew(
        self,
        places: Mapping[str, Sequence[NominatedPlace]],
        ending: set[PodInfo],
        ready: Collection[str],
        *,
        all_of_them: bool,
    ) -> None:
        """Reserve the places of these units, by key, and of no others.

        `ending` pods will release what they hold. Victims of `ready` units have ended: their places are booked whole,
        before those of other units. Reservations on nodes that have not changed stay unless `all_of_them` are to be
        renewed.
        """
        current = {unit: (places[unit], unit in ready) for unit in sorted(places, key=lambda unit: unit not in ready)}
        affected = set(current) if all_of_them else self._find_affected(current, ending)
        for unit in [unit for unit in self._keys_by_unit if unit in affected or unit not in current]:
            self.release(unit)
        coming: dict[str, _ExpectedResources] = {}
        for unit, (mine, is_ready) in current.items():
            for place in mine if unit in affected else ():
                if place.node in self._cache.tables.state.slots:
                    if place.node not in coming:
                        coming[place.node] = _ExpectedResources(self._cache, place.node, ending)
                    self._reserve_place(unit, place, None if is_ready else coming[place.node])
        self._renewed, self._ending, self._position = current, ending, self._cache.tables.state.position

    def _find_affected(
        self, current: Mapping[str, tuple[Sequence[NominatedPlace], bool]], ending: set[PodInfo]
    ) -> set[str]:
        """Return the units that are new or have changed, that have a place on a changed node, or share one with such.

        Pods on a node compete for what its victims release.
        """
        state = self._cache.tables.state
        touched = state.touched(self._position)
        if touched is None:
            return set(current)
        changed = [
            unit
            for unit in {**self._renewed, **current}
            if self._renewed.get(unit) != current.get(unit) or unit not in self._keys_by_unit
        ]
        nodes = {name for slot in touched if (name := state.names[slot]) is not None}
        nodes |= {pod.assumed or pod.node for pod in ending ^ self._ending}
        units_by_node: dict[str, list[str]] = {}
        for unit, (places, _) in current.items():
            for place in places:
                units_by_node.setdefault(place.node, []).append(unit)
        affected = set(changed)
        pending = [*nodes, *(place.node for unit in changed for place in self._places_of(unit, current))]
        seen: set[str] = set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            for unit in units_by_node.get(node, ()):
                if unit not in affected:
                    affected.add(unit)
                    pending += (place.node for place in current[unit][0])
        return affected

    def _places_of(
        self, unit: str, current: Mapping[str, tuple[Sequence[NominatedPlace], bool]]
    ) -> list[NominatedPlace]:
        """Return the places of a unit at the last renewal and now."""
        return [place for known in (self._renewed, current) if unit in known for place in known[unit][0]]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let all reservations be as they are after the context, which rolls back what it changes."""
        state, unchanged = self._cache.tables.state, self._cache.tables.state.position == self._position
        yield
        if unchanged:
            self._position = state.position

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
        self._renewed, self._position = {}, -1
