"""`tier.json` of a tier for the cache daemon: the addresses, stores and limits that it needs."""

from __future__ import annotations

from avactl.base.quantity import quantity
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.stores import mounted
from avactl.program.dataset_access import PUSHED, durable_store, host_path, volume_directory
from avactl.program.manifest import Body
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import percent, seconds


def document(item: Item[CacheTierSpec]) -> Body:
    """Return `tier.json`. Sizes are bytes."""
    spec = item.spec
    return {
        "name": item.name,
        "engine": spec.engine,
        "role": spec.role,
        "masters": [f"{host}:{names.MASTER_PORT}" for host in names.master_hosts(item)],
        "fuseDirectory": host_path(item, "/") if spec.fuse.enabled else None,
        "volumeDirectory": volume_directory(item) if spec.fuse.enabled else None,
        "stores": [{"mount": store.mount, "url": store.url, "readOnly": store.read_only} for store in mounted(item)],
        "writeBack": _write_back(item),
    }


def _write_back(item: Item[CacheTierSpec]) -> Body | None:
    if item.spec.role == "read":
        return None
    back = item.spec.write_back
    if back.mode == "through":
        return {"evict": bool(back.evict)}
    result: Body = {"evict": bool(back.evict), "settleSeconds": int(seconds(back.settle))}
    if back.mode == "async":
        return {**result, "push": {"delaySeconds": int(seconds(back.delay))}}
    durable = durable_store(item)
    if durable is None or durable.capacity is None:
        return result
    (mount,) = (s.mount.rstrip("/") for s in item.spec.under_stores if not s.read_only)
    return {
        **result,
        "capacity": int(quantity(durable.capacity)),
        "push": {
            "high": percent(back.push.high) / 100,
            "low": percent(back.push.low) / 100,
            "delaySeconds": int(seconds(back.push.delay)),
        },
        "targets": {mount: f"{mount}{PUSHED}"},
        # Evicted files leave their path: the daemon does it only if it is told that no pods mount the directory.
        # `evict` is refused in tiers with buckets, and so is not compiled for them.
        **({"mountedByPods": False} if back.evict else {}),
    }
