"""Lowering of NodePool: labels and taints of named nodes, and the pool's topology ConfigMap."""

from __future__ import annotations

from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The objects of one pool."""
    return []
