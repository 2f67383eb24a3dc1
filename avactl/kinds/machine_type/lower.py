"""Lowering of MachineType."""

from __future__ import annotations

from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """Return no objects: the facts go into the topology ConfigMap of each pool of that type."""
    return []
