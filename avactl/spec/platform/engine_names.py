"""Names of the cache engines, without their code."""

from __future__ import annotations

import pkgutil
from pathlib import Path

ENGINES = "avactl.kinds.cache_tier"
"""Package that has a package for each engine."""
DEFAULT = "alluxio"
"""The engine of tiers that name none."""


def engine_names() -> list[str]:
    """Return the names of all engines."""
    directory = Path(__file__).parents[3].joinpath(*ENGINES.split("."))
    return sorted(module.name for module in pkgutil.iter_modules([str(directory)]) if module.ispkg)
