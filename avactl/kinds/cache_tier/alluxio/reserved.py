"""Space of a storage tier that Alluxio reserves for moving blocks."""

from __future__ import annotations

import re

from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec

PROPERTY = "alluxio.worker.management.tier.align.reserved.bytes"
DEFAULT = 1024**3
"""Default of Alluxio 2.9.4. A worker with a smaller tier does not start."""

_PARSE_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgtp]?)b?", re.IGNORECASE).fullmatch
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


def reserved_bytes(item: Item[CacheTierSpec]) -> int:
    """Return the bytes reserved in each storage tier: as the spec's properties say, in Alluxio's notation (`2GB`)."""
    match = _PARSE_SIZE(item.spec.properties.get(PROPERTY, ""))
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match else DEFAULT
