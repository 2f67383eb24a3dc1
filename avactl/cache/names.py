"""Names that the cache daemon shares with the compiler and the scheduler."""

from __future__ import annotations

from avactl.names import CONFIG_LABEL, MANAGED_BY, MANAGER

CONTROLLER = "avactl-cache"
"""Reporting controller of events, and user agent."""
NAMESPACE = "avactl-cache"
"""Namespace of all tiers, and of the daemon's ConfigMaps."""
TIER_CONFIG, DATASET_CONFIG, STATUS_CONFIG = "cache-tier", "cache-dataset", "cache-status"
"""Values of the label `avactl.dev/config`."""
TIER_KEY, DATASET_KEY, STATUS_KEY = "tier.json", "dataset.json", "status.json"
FLUSH_CONFIG, FLUSH_KEY = "cache-flush", "flush.json"
"""A request of `avactl cache flush`."""
STATUS = "avactl-cache-status"

__all__ = [
    "CONFIG_LABEL",
    "CONTROLLER",
    "DATASET_CONFIG",
    "DATASET_KEY",
    "FLUSH_CONFIG",
    "FLUSH_KEY",
    "MANAGED_BY",
    "MANAGER",
    "NAMESPACE",
    "STATUS",
    "STATUS_CONFIG",
    "STATUS_KEY",
    "TIER_CONFIG",
    "TIER_KEY",
]
