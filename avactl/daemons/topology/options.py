"""Options of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Options of the daemon: its machine, its commands and their intervals."""

    node: str
    pool: Path
    """`pool.json`, as the NodePool compiles it."""
    command: Sequence[str] = ("nvidia-smi", "topo", "-m")
    interval: float = 300.0
    """Seconds between two checks of the topology."""
    health_command: Sequence[str] = ("nvidia-smi", "-q", "-x")
    health_interval: float = 30.0
    """Seconds between two checks of the GPUs' health."""
    probation: float = 600.0
    """Seconds without a fault after which GPUs that had one are used again."""
