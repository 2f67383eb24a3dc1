"""The request of one pod. Equal requests form one class, by which the engine caches scores."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from avactl.hardware.placement.allocation import MILLI_PER_GPU


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's request. Raises ValueError for an invalid GPU share."""

    amounts: tuple[int, ...]
    """Amounts in the order of `AllocationState.resources`."""
    gpus: int = 0
    milli: int = MILLI_PER_GPU
    """Milli of each GPU; below 1000 is a share of one GPU."""
    models: frozenset[str] = frozenset()
    """Acceptable GPU models; empty: all."""
    nodes: Hashable = None
    """Key of the node set (`AllocationState.allow`) that it may use; None: all nodes."""
    link: str = "any"
    """Slowest preferred link level between its GPUs."""
    required: bool = False
    """True if the link level is required."""
    rdma: bool = False
    """True if its GPUs should be next to RDMA NICs."""

    def __post_init__(self) -> None:
        if not 0 < self.milli <= MILLI_PER_GPU or (self.milli < MILLI_PER_GPU and self.gpus > 1):
            limit = f"shares are of one GPU, and at most {MILLI_PER_GPU}"
            raise ValueError(f"{self.gpus} GPUs of {self.milli} milli: {limit}")

    @property
    def total_milli(self) -> int:
        """Total GPU milli."""
        return self.gpus * self.milli
