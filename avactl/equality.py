"""Equality of plain data as JSON has it: Python calls `1`, `1.0` and `True` equal."""

from __future__ import annotations

import json
from typing import Any


def same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal, and of equal types at any depth."""
    if one is other:
        return True
    # Most values differ, or are written in one order: both are found without a walk in Python.
    return bool(one == other) and (repr(one) == repr(other) or canonical(one) == canonical(other))


def canonical(value: Any) -> str:
    """Return plain data as JSON with sorted keys: equal texts mean equal data of equal types."""
    return json.dumps(value, sort_keys=True, default=repr)
