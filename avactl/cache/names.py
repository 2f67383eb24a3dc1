"""Names in the cache daemon's objects. Those that the compiler and the scheduler share are in `avactl.names`."""

from __future__ import annotations

CONTROLLER = "avactl-cache"
"""Reporting controller of events, and user agent."""
TIER_KEY, DATASET_KEY, STATUS_KEY = "tier.json", "dataset.json", "status.json"
FLUSH_CONFIG, FLUSH_KEY = "cache-flush", "flush.json"
"""A request of `avactl cache flush`: value of the label `avactl.dev/config`, and key."""
