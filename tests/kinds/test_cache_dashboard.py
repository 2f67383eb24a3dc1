"""The Grafana dashboard of the cache daemon."""

from __future__ import annotations

import json
import re

from avactl.daemons.cache import metrics
from tests.kinds.compiling import body, compiled
from tests.kinds.test_cache_daemon import CLUSTER, READ


def test_the_dashboard_shows_each_metric_of_the_daemon_and_no_other() -> None:
    found = body(compiled(CLUSTER + READ), "ConfigMap", "avactl-cache-dashboard", "avactl-cache")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(found["data"]["avactl-cache.json"])
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name for query in queries for name in re.findall(r"avactl_cache_\w+", query)}
    exported = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in metrics.REGISTRY.collect()
    }
    assert shown == exported


def test_panels_do_not_overlap() -> None:
    found = body(compiled(CLUSTER + READ), "ConfigMap", "avactl-cache-dashboard", "avactl-cache")
    places = [panel["gridPos"] for panel in json.loads(found["data"]["avactl-cache.json"])["panels"]]
    cells = [(at["x"] + x, at["y"] + y) for at in places for x in range(at["w"]) for y in range(at["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
