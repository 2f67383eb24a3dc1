"""Equality of plain data as JSON has it: Python calls `1`, `1.0` and `True` equal."""

from __future__ import annotations

import json
from typing import Any

import orjson


def is_same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal, and of equal types at any depth."""
    if one is other:
        return True
    if one != other:
        return False
    try:  # a walk without Python; most equal values are written in one order
        if orjson.dumps(one) == orjson.dumps(other):
            return True
    except TypeError:  # such as an integer of more than 64 bits
        pass
    return canonical_json(one) == canonical_json(other)


def canonical_json(value: Any) -> str:
    """Return plain data as JSON with sorted keys: equal texts mean equal data of equal types."""
    return json.dumps(value, sort_keys=True, default=repr)
