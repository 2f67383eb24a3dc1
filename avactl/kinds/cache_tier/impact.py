"""Impact of a changed cache tier on what its workers hold."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.kinds.program import Item
from avactl.kinds.registry import ObjectEffect


def impact(old: Item, new: Item, effects: Sequence[ObjectEffect]) -> str | None:
    """Return the effect on cached data; None if no worker restarts."""
    kinds = ("DaemonSet", "StatefulSet")
    if not any(effect.kind in kinds and effect.starts_pods and "worker" in effect.name for effect in effects):
        return None
    if old.spec.role == "write" and old.spec.write_back.mode == "async":
        return "workers restart: write back first, because data not yet in the under-store exists only on the workers"
    if any(tier.medium == "MEM" for tier in old.spec.workers.tiers):
        return "workers restart: data cached in memory is read from the under-store again"
    return "workers restart one at a time"
