"""Consumable capacity: the amount that a request takes of a shared device, rounded by the device's request policy.

Source: k8s.io/dynamic-resource-allocation/structured, consumable_capacity.go (KEP-5075).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.dra.resource_slices import Capacity, SliceDevice

_NANO, _MILLI = 10**9, 10**6


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
            unit = _unit(bounds)
            start, step = _round_up(least, unit), _round_up(_to_nano(bounds["step"]), unit)
            up = start + step * -(-(_round_up(asked, unit) - start) // step)
            return up * unit, _as_text(up * unit // _MILLI)
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
            unit = _unit(bounds)
            start, step = _round_up(_to_nano(bounds["min"]), unit), _round_up(_to_nano(bounds["step"]), unit)
            return (_round_up(amount, unit) - start) % step != 0
        return False
    values = policy.get("validValues") or ()
    return bool(values) and all(amount != _to_nano(value) for value in values)


def _to_nano(text: str) -> int:
    return cel.quantity(text).nano


def _unit(bounds: Mapping[str, Any]) -> int:
    """Return the unit, in nano, in which Kubernetes counts the steps of a range: 1/1000 if that is exact, or 1."""
    exact = all(_to_nano(bounds[name]) % _MILLI == 0 for name in ("min", "max", "step") if bounds.get(name) is not None)
    return _MILLI if exact else _NANO


def _round_up(nano: int, unit: int) -> int:
    """Return whole units, rounded up as Kubernetes rounds quantities."""
    return -(-nano // unit)


def _as_text(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else str(milli // 1000)
