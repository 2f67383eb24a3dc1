"""Lowering of MachineType."""

from __future__ import annotations

from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.machine_type import MachineTypeSpec


def lower(item: Item[MachineTypeSpec], program: Program) -> list[Manifest]:
    """Return no objects: the facts go into the topology ConfigMap of each pool of that type."""
    return []
