"""Placement objectives, in a separate module so that importing them does not load numpy."""

from __future__ import annotations

from typing import Literal

Objective = Literal["pack", "links", "spread"]
"""`pack`: least cost to the expected workload. `links`: for pods with several GPUs, the fastest slowest pair, then
`pack`. `spread`: the node with the least load including the pod, by GPUs or else by CPU, then `pack`."""
