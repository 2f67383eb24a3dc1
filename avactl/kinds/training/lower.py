"""Training jobs to Kubernetes objects."""

from __future__ import annotations

from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The objects of one training job."""
    return []
