"""What one pod asks for. Equal requests are one class: the engine keeps its scores by class."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from avactl.placement.allocation import MILLI_PER_GPU


@dataclass(frozen=True, slots=True)
class Request:
    """A pod as placement sees it. Raises ValueError for GPU shares that there are not."""

    amounts: tuple[int, ...]
    """In the order of `State.resources`."""
    gpus: int = 0
    milli: int = MILLI_PER_GPU
    """Of each GPU; below 1000 is a share, for one GPU."""
    models: frozenset[str] = frozenset()
    """GPU models that will do; empty: all."""
    nodes: Hashable = None
    """Key of the node set (`State.allow`) that it may run on; None: all."""
    link: str = "any"
    """Slowest link level that its GPUs should have among each other."""
    required: bool = False
    """Whether to wait for that link level."""
    rdma: bool = False
    """Whether its GPUs should be next to RDMA NICs."""

    def __post_init__(self) -> None:
        if not 0 < self.milli <= MILLI_PER_GPU or (self.milli < MILLI_PER_GPU and self.gpus > 1):
            raise ValueError(
                f"{self.gpus} GPUs of {self.milli} milli: shares are of one GPU, and at most {MILLI_PER_GPU}"
            )

    @property
    def total_milli(self) -> int:
        """GPU milli in all."""
        return self.gpus * self.milli
