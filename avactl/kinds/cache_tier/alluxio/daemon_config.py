"""`tier.json` of a tier for the cache daemon: the addresses, stores and limits that it needs."""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.contracts.cache import PushConfig, StoreConfig, TierConfig, WriteBackConfig
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.stores import mounted_stores
from avactl.program.dataset_access import PUSHED, durable_store, host_path, volume_directory
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import duration_seconds, percent_number


def tier_document(item: Item[CacheTierSpec]) -> TierConfig:
    """Return `tier.json`."""
    spec = item.spec
    return TierConfig(
        name=item.name,
        engine="alluxio",
        role=spec.role,
        masters=tuple(f"{host}:{names.MASTER_PORT}" for host in names.master_hosts(item)),
        fuse_directory=host_path(item, "/") if spec.fuse.enabled else None,
        volume_directory=volume_directory(item) if spec.fuse.enabled else None,
        stores=tuple(
            StoreConfig(mount=store.mount, url=store.url, read_only=store.read_only) for store in mounted_stores(item)
        ),
        write_back=_write_back(item),
    )


def _write_back(item: Item[CacheTierSpec]) -> WriteBackConfig | None:
    if item.spec.role == "read":
        return None
    back = item.spec.write_back
    evict, settle = bool(back.evict), int(duration_seconds(back.settle))
    if back.mode == "through":
        return WriteBackConfig(evict=evict)
    if back.mode == "async":
        push = PushConfig(delay_seconds=int(duration_seconds(back.delay)))
        return WriteBackConfig(evict=evict, settle_seconds=settle, push=push)
    durable = durable_store(item)
    if durable is None or durable.capacity is None:
        return WriteBackConfig(evict=evict, settle_seconds=settle)
    (mount,) = (s.mount.rstrip("/") for s in item.spec.under_stores if not s.read_only)
    return WriteBackConfig(
        evict=evict,
        settle_seconds=settle,
        capacity=int(parse_quantity(durable.capacity)),
        push=PushConfig(
            high=percent_number(back.push.high) / 100,
            low=percent_number(back.push.low) / 100,
            delay_seconds=int(duration_seconds(back.push.delay)),
        ),
        targets={mount: f"{mount}{PUSHED}"},
        # Evicted files leave their path: the daemon does it only if it is told that no pods mount the directory.
        # `evict` is refused in tiers with buckets, and so is not compiled for them.
        mounted_by_pods=False if back.evict else None,
    )
