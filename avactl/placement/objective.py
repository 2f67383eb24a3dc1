"""What placement strives for. By itself, so that who only names it needs none of the arrays."""

from __future__ import annotations

from typing import Literal

Objective = Literal["pack", "links", "spread"]
"""`pack`: what costs the expected workload least. `links`: for pods with several GPUs the fastest slowest pair, then
that. `spread`: the node that is least loaded with the pod on it, by GPUs or else by CPU, then that."""
