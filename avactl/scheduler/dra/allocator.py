"""Allocate devices of one node to the claims of one pod: a search, exact within a limit of steps.

The rules are those of kube-scheduler's allocator. Unlike it, the search tries the caller's preferred devices first, and
only one of several equivalent devices. Source: k8s.io/dynamic-resource-allocation/structured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.dra.consumable_capacity import consumed
from avactl.scheduler.dra.resource_claim import ALL, MAX_DEVICES, DeviceRequest, ParsedClaim
from avactl.scheduler.dra.resource_slices import DeviceInventory, Key, PoolKey, ReachablePool, SliceDevice

MAX_STEPS = 20_000


class AllocatedDevice(NamedTuple):
    """A device allocated to a request."""

    wanted: DeviceRequest
    device: SliceDevice
    consumed: Mapping[str, tuple[int, str]]
    """Capacity consumed on a shared device."""


class StuckError(Exception):
    """The search failed for a reason other than free capacity; the message says why."""


def tolerated(device: SliceDevice, wanted: DeviceRequest) -> bool:
    """Return True if a request tolerates the taints of a device."""
    return find_untolerated(device.taints, wanted.tolerations) is None


def find_untolerated(
    taints: Iterable[Mapping[str, Any]], tolerations: Collection[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the first taint of a device that is not tolerated."""
    return next((taint for taint in taints if not any(_toleration_covers(each, taint) for each in tolerations)), None)


def _toleration_covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return bool((toleration.get("value") or "") == (taint.get("value") or ""))
    return bool(operator == "Exists")


def takes(wanted: DeviceRequest, device: SliceDevice) -> bool:
    """Return True if all selectors of a request match a device. Raises CelError if a selector fails on it."""
    return all(cel.compile_selector(expression)(device.facts) for expression in wanted.selectors)


class Allocator:
    """One search, which books nothing."""

    def __init__(
        self,
        devices: DeviceInventory,
        pools: Sequence[ReachablePool],
        claims: Sequence[ParsedClaim],
        selects: Callable[[DeviceRequest, SliceDevice], bool] = takes,
        prefer: Collection[Key] = (),
    ) -> None:
        """`selects` is `takes` or a cached version of it; `prefer`: devices that are tried first."""
        self._devices, self._pools, self._claims, self._selects = devices, pools, claims, selects
        self._usable = [device for pool in pools for device in pool.devices]
        if prefer:
            self._usable.sort(key=lambda device: device.key not in prefer)
        every = [wanted for claim in claims for request in claim.requests for wanted in request]
        self._admin = any(wanted.admin for wanted in every)
        self._has_all_requests = any(wanted.number == ALL for wanted in every)
        self._has_capacity_requests = any(wanted.capacity for wanted in every)
        self._attributes = sorted({each.attribute for claim in claims for each in claim.constraints})
        self._candidates: dict[int, list[SliceDevice]] = {}
        self._by_value: dict[tuple[int, str], dict[str, list[int]]] = {}
        """Indexes of a request's candidates by the value of an attribute, as text."""
        self._equivalence_keys: dict[Key, Any] = {}
        self._values: list[list[list[tuple[str, Any]]]] = [[[] for _ in claim.constraints] for claim in claims]
        self._exclusive: dict[Key, list[int]] = {}
        """Claims of this search that hold a device exclusively."""
        self._shared_parts: dict[Key, list[Mapping[str, tuple[int, str]]]] = {}
        self._counted: dict[PoolKey, dict[tuple[str, str], int]] = {}
        self._allocated: list[list[AllocatedDevice]] = [[] for _ in claims]
        self._steps = 0
        self._failed = ""

    def run(self) -> list[list[AllocatedDevice]] | None:
        """Return the devices of each claim; None if there is no allocation. Raises StuckError."""
        if self._has_all_requests and self._pool_problem():
            raise StuckError(self._pool_problem())
        if self._allocate_from(0, 0):
            return self._allocated
        none = any(not candidates for candidates in self._candidates.values())
        trouble = self._pool_problem() or (self._failed if none else "")
        if trouble:
            raise StuckError(trouble)
        return None

    def _pool_problem(self) -> str:
        return next((pool.trouble for pool in self._pools if pool.trouble), "")

    # -- the search -------------------------------------------------------------------------------------------------

    def _allocate_from(self, claim: int, request: int) -> bool:
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._allocate_from(claim + 1, 0)
        for wanted in requests[request]:
            if wanted.number == ALL:
                done = self._allocate_all(claim, request, wanted)
            else:
                done = self._allocate_number(claim, request, wanted, wanted.number, 0)
            if done:
                return True
        return False

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise StuckError("its ResourceClaims have too many possible allocations to search")

    def _allocate_number(self, claim: int, request: int, wanted: DeviceRequest, count: int, start: int) -> bool:
        """Allocate `count` more devices, from the candidate at `start` on, and all later requests."""
        if not count:
            return self._allocate_from(claim, request + 1)
        if len(self._allocated[claim]) + count > MAX_DEVICES:
            return False
        self._count_step()
        candidates = self._candidates_of(wanted)
        tried: set[Any] = set()
        indexes = self._indexes_that_match(claim, wanted, start, len(candidates))
        for index in indexes[: max(0, len(indexes) - count + 1)]:
            device = candidates[index]
            look = self._equivalence_keys.get(device.key)
            if look is None:
                look = self._equivalence_keys[device.key] = self._equivalence_key(device)
            if look in tried:
                continue
            undo = self._take_device(claim, wanted, device)
            if undo is None:
                continue
            if self._allocate_number(claim, request, wanted, count - 1, index + 1):
                return True
            undo()
            tried.add(look)
        return False

    def _allocate_all(self, claim: int, request: int, wanted: DeviceRequest) -> bool:
        self._count_step()
        try:
            every = [
                device
                for device in self._usable
                # Devices that cannot provide the capacity even if they are free are left out; one without room left
                # makes the request fail, like one that is allocated.
                if self._selects(wanted, device) and self._provides(wanted, device)
            ]
        except cel.CelError as error:
            raise StuckError(_selector_error(error)) from None
        if not every or len(self._allocated[claim]) + len(every) > MAX_DEVICES:
            return False
        undone: list[Callable[[], None]] = []
        for device in every:
            undo = self._take_device(claim, wanted, device) if tolerated(device, wanted) else None
            if undo is None:
                break
            undone.append(undo)
        else:
            if self._allocate_from(claim, request + 1):
                return True
        for undo in reversed(undone):
            undo()
        return False

    def _candidates_of(self, wanted: DeviceRequest) -> list[SliceDevice]:
        """Return the devices that a request could get, in the order in which they are tried."""
        known = self._candidates.get(id(wanted))
        if known is None:
            known = self._candidates[id(wanted)] = [
                device for device in self._usable if self._is_candidate(wanted, device)
            ]
        return known

    def _indexes_that_match(self, claim: int, wanted: DeviceRequest, start: int, end: int) -> Sequence[int]:
        """Return the candidates from `start` to `end` that the known values of constraints do not exclude."""
        for number, constraint in enumerate(self._claims[claim].constraints):
            seen = self._values[claim][number]
            if seen and not constraint.distinct and constraint.covers(wanted):
                by_value = self._by_value.get((id(wanted), constraint.attribute))
                if by_value is None:
                    by_value = self._by_value[id(wanted), constraint.attribute] = {}
                    for index, device in enumerate(self._candidates_of(wanted)):
                        by_value.setdefault(str(device.attribute(constraint.attribute)), []).append(index)
                indexes = by_value.get(str(seen[0]), [])
                return indexes[bisect_left(indexes, start) :]
        return range(start, end)

    def _is_candidate(self, wanted: DeviceRequest, device: SliceDevice) -> bool:
        if device.key in self._devices.taken and not wanted.admin:
            return False
        if (device.taints and not tolerated(device, wanted)) or not self._has_counters(device):
            return False
        try:
            return self._selects(wanted, device)
        except cel.CelError as error:
            # kube-scheduler gives up on the pod at such a device; here only the device is left out.
            self._failed = _selector_error(error)
            return False

    def _equivalence_key(self, device: SliceDevice) -> Any:
        """Return a key that is equal for devices that are interchangeable in this search."""
        if self._admin or device.shared:
            return device.key
        wanted = [
            self._is_candidate(wanted, device)
            for claim in self._claims
            for request in claim.requests
            for wanted in request
        ]
        capacity = sorted((name, each.value, str(each.policy)) for name, each in device.capacity.items())
        values = [device.attribute(name) for name in self._attributes]
        return (
            device.key[:2],
            str(wanted),
            str(values),
            str(capacity) if self._has_capacity_requests else "",
            device.counters,
        )

    # -- one device -------------------------------------------------------------------------------------------------

    @staticmethod
    def _provides(wanted: DeviceRequest, device: SliceDevice) -> bool:
        """Return True if a free device has the capacity that a request asks for."""
        return not (device.capacity or wanted.capacity) or consumed(device, wanted.capacity) is not None

    def _consumable(self, wanted: DeviceRequest, device: SliceDevice) -> dict[str, tuple[int, str]] | None:
        """Return the capacity that a request consumes of a device; None if less is left."""
        if not device.capacity and not wanted.capacity:
            return {}
        taken = consumed(device, wanted.capacity)
        if taken is None or not device.shared:
            return taken
        used = self._devices.used.get(device.key, {})
        for name, (amount, _) in taken.items():
            before = used.get(name, 0) + sum(part[name][0] for part in self._shared_parts.get(device.key, ()))
            if before + amount > device.capacity[name].value:
                return None
        return taken

    def _take_device(self, claim: int, wanted: DeviceRequest, device: SliceDevice) -> Callable[[], None] | None:
        """Take a device for a request; return how to undo it, or None if the device is not available."""
        key = device.key
        mine = self._exclusive.get(key, ())
        if wanted.admin:
            if claim in mine:
                return None
        elif mine or key in self._devices.taken:
            return None
        taken = self._consumable(wanted, device)
        if taken is None:
            return None
        constraints, values = self._claims[claim].constraints, self._values[claim]
        added = []
        for number, constraint in enumerate(constraints):
            if constraint.covers(wanted):
                value = device.attribute(constraint.attribute)
                seen = values[number]
                if value is None or (value in seen if constraint.distinct else bool(seen) and seen[0] != value):
                    return None
                added.append((seen, value))
        # A further share of a device takes nothing more from the counters of its pool.
        shares = device.shared and (self._devices.has_shares(key) or bool(self._shared_parts.get(key)))
        counts = bool(device.counters) and not shares
        if counts and not self._take_counters(device):
            return None
        for seen, value in added:
            seen.append(value)
        if device.shared:
            self._shared_parts.setdefault(key, []).append(taken)
        else:
            self._exclusive.setdefault(key, []).append(claim)
        self._allocated[claim].append(AllocatedDevice(wanted, device, taken if device.shared else {}))

        def undo() -> None:
            self._allocated[claim].pop()
            if device.shared:
                self._shared_parts[key].pop()
            else:
                self._exclusive[key].pop()
            for seen, _ in added:
                seen.pop()
            if counts:
                self._return_counters(device)

        return undo

    def _has_counters(self, device: SliceDevice) -> bool:
        """Return False if the counters of a device's pool were too low for it already before this search."""
        if not device.counters or (device.shared and self._devices.has_shares(device.key)):
            return True
        left = self._devices.left(device.key[:2])
        return all(left.get((group, name), amount) >= amount for group, name, amount in device.counters)

    def _take_counters(self, device: SliceDevice) -> bool:
        pool = device.key[:2]
        left, counted = self._devices.left(pool), self._counted.setdefault(pool, {})
        for group, name, amount in device.counters:
            counted[group, name] = counted.get((group, name), 0) + amount
        # As upstream: if any counter of a pool is overdrawn, none of its counted devices is available.
        if all(counted.get(counter, 0) <= amount for counter, amount in left.items()):
            return True
        self._return_counters(device)
        return False

    def _return_counters(self, device: SliceDevice) -> None:
        counted = self._counted[device.key[:2]]
        for group, name, amount in device.counters:
            counted[group, name] -= amount


def _selector_error(error: cel.CelError) -> str:
    return f"a selector of its ResourceClaim cannot be evaluated for a device: {error}"
