"""Prometheus metrics of the cache daemon."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()
_TIER, _VERSION = ["tier"], ["namespace", "dataset", "version"]

LEADER = Gauge("avactl_cache_leader", "1 on the replica that acts.", registry=REGISTRY)
CAPACITY = Gauge("avactl_cache_capacity_bytes", "Capacity of a tier's workers.", _TIER, registry=REGISTRY)
USED = Gauge("avactl_cache_used_bytes", "Bytes that a tier's workers hold.", _TIER, registry=REGISTRY)
READ = Gauge("avactl_cache_read_bytes", "Bytes that readers got since the masters started.", _TIER, registry=REGISTRY)
STORE_READ = Gauge(
    "avactl_cache_store_read_bytes",
    "Bytes from the under-stores, for readers and prewarming.",
    _TIER,
    registry=REGISTRY,
)
MOUNTS = Gauge(
    "avactl_cache_mounts", "FUSE mounts of a tier, by state: mounted, lost.", ["tier", "state"], registry=REGISTRY
)
WORKERS = Gauge("avactl_cache_workers", "Live workers of a tier.", _TIER, registry=REGISTRY)
ERRORS = Counter(
    "avactl_cache_errors_total", "Failed passes over a tier, by task.", ["tier", "task"], registry=REGISTRY
)
WARM = Gauge("avactl_cache_warm_ratio", "Cached share of a version's bytes.", _VERSION, registry=REGISTRY)
PREWARMED = Counter(
    "avactl_cache_prewarmed_bytes_total", "Bytes loaded by prewarming.", [*_TIER, *_VERSION], registry=REGISTRY
)
DIRTY = Gauge("avactl_cache_dirty_bytes", "Bytes not verified to be in the object store.", _TIER, registry=REGISTRY)
DIRTY_FILES = Gauge("avactl_cache_dirty_files", "Files of these bytes.", _TIER, registry=REGISTRY)
OLDEST = Gauge("avactl_cache_oldest_dirty_seconds", "Age of the oldest of these files.", _TIER, registry=REGISTRY)
PUSHES = Counter(
    "avactl_cache_pushes_total",
    "Pushed files, by result: verified, mismatch, failed.",
    ["tier", "result"],
    registry=REGISTRY,
)
PUSHED = Counter("avactl_cache_pushed_bytes_total", "Bytes verified in the object store.", _TIER, registry=REGISTRY)
