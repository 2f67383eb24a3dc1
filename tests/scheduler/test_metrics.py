"""The metrics: what is said of pools and teams, and that the docs say the same as the code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from avactl.contracts.scheduling import GpuLimit, TeamLeaf
from avactl.hardware.placement.expected_workload import Workload
from avactl.hardware.placement.fragmentation import Measure
from avactl.hardware.placement.request import Request
from avactl.scheduler import metrics, metrics_collector
from avactl.scheduler.inspection import usage
from avactl.scheduler.objects.config import TeamQuota
from tests.scheduler import offline

DOCS = Path(__file__).resolve().parents[2] / "docs" / "scheduler.md"


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"avactl_scheduler_{name}", labels)


def test_pools_and_teams() -> None:
    made = offline.cache(
        [offline.node("a"), offline.node("b"), offline.node("c", unschedulable=True)],
        [
            offline.pod("six", 6, "a", "0,1,2,3,4,5"),
            offline.pod("firm", 1, "a", "6", preemptible="false"),
            offline.pod("waits", 2),
        ],
    )
    limit = GpuLimit(gpu="A100", guaranteed=2, borrow=8, weight=1)
    leaf = TeamLeaf(team="vision", namespaces=("vision",), gpus=(limit,), shapes=())
    made.quotas.put_quota("vision", TeamQuota.from_leaf(leaf))
    pod = made.tables.pods["vision/waits"]
    request = made.requests.request(pod.shape)
    measure = Measure(Workload.declared([request]).shares(), len(made.tables.state.resources))
    asyncio.run(metrics_collector.collect(made, measure))
    pool = {"pool": "big", "model": "A100"}
    assert (value("pool_gpus", **pool), value("pool_gpus_allocated", **pool)) == (24, 7)
    assert value("pool_machines_whole", **pool) == 1
    # Pods of two GPUs cannot use the one that is left.
    assert value("pool_gpus_fragmented", **pool) == 1
    team = {"team": "vision", "model": "A100"}
    assert (value("team_gpus", **team), value("team_gpus_guaranteed", **team)) == (7, 2)
    assert (value("team_gpus_borrowed", **team), value("team_gpus_reclaimable", **team)) == (5, 5)
    assert value("team_gpus_waiting", team="vision", model="") == 2
    # A pool that is gone is no series any more.
    for name in "abc":
        made.drop_node(name)
    asyncio.run(metrics_collector.collect(made, measure))
    assert value("pool_gpus", **pool) is None


def test_what_is_free_is_not_in_pieces_because_others_want_other_models() -> None:
    made = offline.cache([offline.node("a"), offline.node("b")], [offline.pod("six", 6, "a", "0,1,2,3,4,5")])
    requests = [
        Request((0,) * len(made.tables.state.resources), 8, models=frozenset({model}))
        for model in ("A100", "H100", "T4")
    ]
    lost = [
        usage.pools(made, Measure(Workload.declared(some).shares(), len(made.tables.state.resources)))[0].lost
        for some in (requests, requests[:1], requests[1:])
    ]
    assert lost[:2] == [pytest.approx(2), pytest.approx(2)]
    # Nobody who is expected may have one.
    assert lost[2] is None


def test_docs_list_every_metric() -> None:
    """Name, labels and kind of each metric stand in the table of docs/scheduler.md, and no others."""
    listed = dict(re.findall(r"^\| `(avactl_scheduler_\w+)` \| (\w+) \|", DOCS.read_text(encoding="utf-8"), re.M))
    types = re.findall(r"^# TYPE (\S+) (\w+)$", generate_latest(metrics.REGISTRY).decode(), re.M)
    assert listed == {name: kind for name, kind in types if not name.endswith("_created")}
