"""Amounts of resources that pods request, as exact integers."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from avactl.base.quantity import parse_quantity

Milli = int
"""An amount of GPUs, CPU cores or bytes, in thousandths: exact for every quantity, and fast to add."""
Amounts = tuple[tuple[str, str, Milli], ...]
"""Amount of each resource: key (`gpus`, `cpu`, `memory`), GPU model or "", amount."""
Ask = tuple[tuple[str | int, ...], int, Amounts]
"""Demand of one role: its path, its pods, and the amounts of each pod."""


@lru_cache(maxsize=4096)
def parse_milli(value: str | int | float) -> Milli:
    """Convert a quantity to thousandths, rounded up. Raises ValueError."""
    return ceil(parse_quantity(value) * 1000)
