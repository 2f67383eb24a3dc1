"""Consumable capacity: the amount that a request takes of a shared device, rounded by the device's request policy.

Source: k8s.io/dynamic-resource-allocation/structured, consumable_capacity.go (KEP-5075).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.dra.resource_slices import Capacity, SliceDevice

_NANO = 10**9


def consumed(device: SliceDevice, wanted: Mapping[str, str]) -> dict[str, tuple[int, str]] | None:
    """Return the amount taken of each capacity, in nano units and as text; None if the device cannot provide it."""
    if not wanted.keys() <= device.capacity.keys():
        return None
    result = {}
    for name, capacity in device.capacity.items():
        taken = _requested_amount(wanted.get(name), capacity)
        if taken[0] > capacity.value or _violates_policy(taken[0], capacity.policy or {}):
            return None
        result[name] = taken
    return result


def _requested_amount(wanted: str | None, capacity: Capacity) -> tuple[int, str]:
    policy = capacity.policy or {}
    if wanted is None:
        default = policy.get("default")
        return (capacity.value, capacity.text) if default is None else (_to_nano(default), default)
    asked = _to_nano(wanted)
    bounds: Mapping[str, Any] = policy.get("validRange") or {}
    if bounds.get("min") is not None:
        least = _to_nano(bounds["min"])
        if asked < least:
            return least, bounds["min"]
        if bounds.get("step") is not None:
            start, step = _units(least), _units(_to_nano(bounds["step"]))
            up = start + step * -(-(_units(asked) - start) // step)
            return up * _NANO, str(up)
        return asked, wanted
    for value in policy.get("validValues") or ():
        if asked <= _to_nano(value):
            return _to_nano(value), value
    return asked, wanted


def _violates_policy(amount: int, policy: Mapping[str, Any]) -> bool:
    if policy.get("default") is not None and amount == _to_nano(policy["default"]):
        return False
    bounds: Mapping[str, Any] = policy.get("validRange") or {}
    if bounds:
        if bounds.get("max") is not None and amount > _to_nano(bounds["max"]):
            return True
        if bounds.get("step") is not None:
            start = _units(_to_nano(bounds["min"]))
            return (_units(amount) - start) % _units(_to_nano(bounds["step"])) != 0
        return False
    values = policy.get("validValues") or ()
    return bool(values) and all(amount != _to_nano(value) for value in values)


def _to_nano(text: str) -> int:
    return cel.quantity(text).nano


def _units(nano: int) -> int:
    """Whole units, rounded up as Kubernetes rounds quantities."""
    return -(-nano // _NANO)
