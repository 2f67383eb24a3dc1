"""Placement objectives. A module of its own, so that naming one does not import numpy."""

from __future__ import annotations

from typing import Literal

Objective = Literal["pack", "links", "spread"]
"""`pack`: least cost to the expected workload. `links`: for pods with several GPUs, the fastest slowest pair, then
`pack`. `spread`: the node with the least load including the pod, by GPUs or else by CPU, then `pack`."""
