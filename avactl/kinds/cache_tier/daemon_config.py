"""ConfigMap of a tier for the cache daemon: the addresses, stores and limits that it needs."""

from __future__ import annotations

from avactl.kinds.cache_tier.alluxio import names as alluxio
from avactl.kinds.cache_tier.alluxio.stores import mounted
from avactl.kinds.dataset_access import PUSHED, host_path, pushes
from avactl.kinds.fields.values import percent, seconds
from avactl.kinds.lowering import k8s
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program
from avactl.names import CACHE_NAMESPACE, CACHE_TIER_CONFIG, CONFIG_LABEL
from avactl.quantity import quantity


def config_map(item: Item, program: Program) -> list[Manifest]:
    """Return the ConfigMap; none if the cluster runs no cache daemon."""
    if not program.cluster_spec(item.spec.cluster).daemons.cache:
        return []
    data = {"tier.json": k8s.json_text(document(item))}
    return [
        k8s.config_map(
            item, item.spec.cluster, f"tier.{item.name}", CACHE_NAMESPACE, data,
            component="daemon", extra_labels={CONFIG_LABEL: CACHE_TIER_CONFIG},
        )
    ]  # fmt: skip


def document(item: Item) -> Body:
    """Return `tier.json`. Sizes are bytes."""
    spec = item.spec
    return {
        "name": item.name,
        "engine": spec.engine,
        "role": spec.role,
        "masters": [f"{host}:{alluxio.MASTER_PORT}" for host in alluxio.master_hosts(item)],
        "fuseDirectory": host_path(item, "/") if spec.fuse.enabled else None,
        "stores": [{"mount": store.mount, "url": store.url, "readOnly": store.read_only} for store in mounted(item)],
        "writeBack": _write_back(item),
    }


def _write_back(item: Item) -> Body | None:
    if item.spec.role == "read":
        return None
    back = item.spec.write_back
    result: Body = {"mode": back.mode, "replicas": back.replicas, "evict": bool(back.evict)}
    if back.mode == "async":
        return {**result, "push": {"delaySeconds": int(seconds(back.delay))}}
    if not pushes(item):
        return result
    (mount,) = (s.mount.rstrip("/") for s in item.spec.under_stores if not s.read_only)
    return {
        **result,
        "capacity": int(quantity(back.durable.capacity)),
        "push": {
            "high": percent(back.push.high) / 100,
            "low": percent(back.push.low) / 100,
            "delaySeconds": int(seconds(back.push.delay)),
        },
        "targets": {mount: f"{mount}{PUSHED}"},
    }
