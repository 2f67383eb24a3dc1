"""Lowering of Quota: ResourceQuota and LimitRange in the team's namespaces, and its leaf of the quota tree."""

from __future__ import annotations

from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The objects of one quota."""
    return []
