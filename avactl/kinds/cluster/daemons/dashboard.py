"""Grafana dashboards, as ConfigMaps that Grafana's dashboard sidecar loads, and that of the cache daemon's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec

NAME = "avactl-cache-dashboard"
_WIDTH, _HEIGHT = 12, 8
"""Of a panel, on Grafana's grid of 24 columns."""


class Panel(NamedTuple):
    """A time series panel."""

    title: str
    unit: str
    """Name of Grafana's unit."""
    queries: dict[str, str]
    """Legend → PromQL."""


_READ, _FROM_STORE, _PREWARMED = (
    f"sum by (tier) (rate(avactl_cache_{name}[5m]))"
    for name in ("read_bytes", "store_read_bytes", "prewarmed_bytes_total")
)

PANELS = (
    Panel(
        "Hit ratio",
        "percentunit",
        {"{{tier}}": f"clamp(1 - ({_FROM_STORE} - ({_PREWARMED} or 0 * {_FROM_STORE})) / {_READ}, 0, 1)"},
    ),
    Panel(
        "Bytes read",
        "Bps",
        {
            "{{tier}} by readers": "rate(avactl_cache_read_bytes[5m])",
            "{{tier}} from the store": "rate(avactl_cache_store_read_bytes[5m])",
        },
    ),
    Panel("Fill", "percentunit", {"{{tier}}": "avactl_cache_used_bytes / avactl_cache_capacity_bytes"}),
    Panel("Workers", "short", {"{{tier}}": "avactl_cache_workers"}),
    Panel("Warm datasets", "percentunit", {"{{namespace}}/{{dataset}} {{version}}": "avactl_cache_warm_ratio"}),
    Panel(
        "Prewarming", "Bps", {"{{namespace}}/{{dataset}} {{version}}": "rate(avactl_cache_prewarmed_bytes_total[5m])"}
    ),
    Panel("Dirty bytes", "bytes", {"{{tier}}": "avactl_cache_dirty_bytes"}),
    Panel("Oldest dirty file", "s", {"{{tier}}": "avactl_cache_oldest_dirty_seconds and avactl_cache_dirty_files > 0"}),
    Panel("Pushed to the store", "Bps", {"{{tier}}": "rate(avactl_cache_pushed_bytes_total[5m])"}),
    Panel("Pushes", "cps", {"{{tier}} {{result}}": "rate(avactl_cache_pushes_total[5m])"}),
    Panel("FUSE mounts", "short", {"{{tier}} {{state}}": "avactl_cache_mounts"}),
    Panel(
        "Failures and leaders",
        "short",
        {
            "{{tier}} {{task}}": "increase(avactl_cache_errors_total[5m])",
            "leaders": "sum(avactl_cache_leader)",
        },
    ),
)


def config_map(item: Item[ClusterSpec]) -> Manifest:
    """Return the ConfigMap with the dashboard."""
    data = {"avactl-cache.json": k8s.json_text(build_dashboard("avactl-cache", "avactl cache tiers", PANELS))}
    return k8s.config_map(
        item, item.name, NAME, CACHE_NAMESPACE, data, component="cache", extra_labels={"grafana_dashboard": "1"}
    )


def build_dashboard(uid: str, title: str, given: Sequence[Panel]) -> Body:
    """Return a dashboard, in Grafana's JSON model."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for index, panel in enumerate(given):
        row, column = divmod(index, 2)
        targets = [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.queries.items())
        ]
        panels.append(
            {
                "id": index + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "targets": targets,
                "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            }
        )
    variable = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["avactl"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [variable]},
        "panels": panels,
    }
