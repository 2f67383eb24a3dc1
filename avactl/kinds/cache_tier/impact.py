"""Impact of a changed cache tier on what its workers hold, and on where files are."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.program.cache_engines import engine_of
from avactl.program.dataset_access import PUSHED, has_durable_store
from avactl.program.program import Item
from avactl.program.registry import ObjectEffect
from avactl.spec.platform.cache_tier import CacheTierSpec


def impact(old: Item[CacheTierSpec], new: Item[CacheTierSpec], effects: Sequence[ObjectEffect]) -> str | None:
    """Return the effect on files, mounts and cached data; None if there is none."""
    found = _path_impact(old, new), _mount_impact(old, new), _worker_impact(old, new, effects)
    return "; ".join(filter(None, found)) or None


def _mount_impact(old: Item[CacheTierSpec], new: Item[CacheTierSpec]) -> str | None:
    """Return what mounts on machines do with other options."""
    if old.spec.engine != new.spec.engine or engine_of(old).mount_options(old) == engine_of(new).mount_options(new):
        return None
    return "mounts that run keep their options until no pod on their machine uses them any more"


def _path_impact(old: Item[CacheTierSpec], new: Item[CacheTierSpec]) -> str | None:
    """Return what happens to files that were written, if their directory shows another store."""
    before, after = _written_to(old), _written_to(new)
    moved = [mount for mount, store in before.items() if after.get(mount, store) != store]
    if not moved:
        return None
    (mount, *_) = moved
    text = f"files below {', '.join(moved)} leave their paths"
    if has_durable_store(old):
        text += f": run `avactl cache flush {old.name}:{mount}` first"
    if has_durable_store(new):
        text += f"{',' if has_durable_store(old) else ':'} copy them back from {mount}{PUSHED} later"
    return text


def _written_to(tier: Item[CacheTierSpec]) -> dict[str, str]:
    """Return the store that each writable directory of a write tier shows."""
    if tier.spec.role != "write":
        return {}
    durable = tier.spec.write_back.durable if has_durable_store(tier) else None
    return {
        store.mount.rstrip("/"): store.url.rstrip("/")
        if durable is None
        else f"{durable.url or durable.claim}".rstrip("/")
        for store in tier.spec.under_stores
        if not store.read_only
    }


def _worker_impact(old: Item[CacheTierSpec], new: Item[CacheTierSpec], effects: Sequence[ObjectEffect]) -> str | None:
    kinds = ("DaemonSet", "StatefulSet")
    if not any(effect.kind in kinds and effect.starts_pods and "worker" in effect.name for effect in effects):
        return None
    if old.spec.role == "write" and old.spec.write_back.mode == "async":
        return "workers restart: write back first, because data not yet in the under-store exists only on the workers"
    if any(tier.medium == "MEM" for tier in old.spec.workers.tiers):
        return "workers restart: data cached in memory is read from the under-store again"
    return "workers restart one at a time"
