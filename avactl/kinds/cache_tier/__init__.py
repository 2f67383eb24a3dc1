"""CacheTier: a cache between object stores and jobs."""

from avactl.kinds.cache_tier.check import check
from avactl.kinds.cache_tier.check_machines import check_all
from avactl.kinds.cache_tier.facts import facts
from avactl.kinds.cache_tier.impact import impact
from avactl.kinds.cache_tier.lower import lower
from avactl.program.registry import Kind
from avactl.spec.platform.cache_tier import (
    CacheTier,
    CacheTierSpec,
    Fuse,
    Masters,
    StorageTier,
    UnderStore,
    Volume,
    Workers,
    WriteBack,
)

KIND = Kind(model=CacheTier, lower=lower, check=check, check_all=check_all, facts=facts, impact=impact)

__all__ = [
    "KIND",
    "CacheTier",
    "CacheTierSpec",
    "Fuse",
    "Masters",
    "StorageTier",
    "UnderStore",
    "Volume",
    "Workers",
    "WriteBack",
]
