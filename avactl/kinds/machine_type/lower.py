"""Lowering of MachineType."""

from __future__ import annotations

from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """No objects: the facts go out with the topology ConfigMap of each pool that has such machines."""
    return []
