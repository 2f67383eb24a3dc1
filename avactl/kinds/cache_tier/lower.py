"""CacheTier → the objects of its engine, and the ConfigMap for the cache daemon."""

from __future__ import annotations

from collections.abc import Callable

from avactl.kinds.cache_tier.alluxio.lower import lower as alluxio
from avactl.kinds.cache_tier.daemon_config import config_map
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program

ENGINES: dict[str, Callable[[Item, Program], list[Manifest]]] = {"alluxio": alluxio}
"""Engine of `spec.engine` → its lowering. Each engine is one package beside this module."""


def lower(item: Item, program: Program) -> list[Manifest]:
    """Return the objects of one tier."""
    return [*ENGINES[item.spec.engine](item, program), *config_map(item, program)]
