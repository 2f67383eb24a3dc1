"""CacheTier → the objects of its engine, and the ConfigMap for the cache daemon."""

from __future__ import annotations

from avactl.kinds.cache_tier.daemon_config import config_map
from avactl.program.cache_engines import engine_of
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec


def lower(item: Item[CacheTierSpec], program: Program) -> list[Manifest]:
    """Return the objects of one tier."""
    return [*engine_of(item).lower(item, program), *config_map(item, program)]
