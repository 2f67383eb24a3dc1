"""Scheduling constraints: one is a class and an entry in `CONSTRAINTS`, and no other module names it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from avactl.change.plan.cluster_state import ClusterState
from avactl.change.plan.simulator import SimulatedCluster
from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.fragmentation import Floats
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints import constraint_set
from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter, Watch
from avactl.scheduler.daemon import SchedulerDaemon, SchedulerOptions
from avactl.scheduler.defrag.planner import _pinned_reason
from avactl.scheduler.inspection.cluster_view import ClusterView
from avactl.scheduler.objects.node_rules import ReportedWaitError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from tests.scheduler import offline
from tests.scheduler.memory import Memory
from tests.test_layout import ROOT, tracked

POLICY = PlacementPolicy(cluster="main", system_namespace="avactl-system", levels=(), gpu_driver="gpu.example.com")
LABEL = {"example.com/licence": "solver"}
PATH = "/apis/example.com/v1/licences"


class Licences(Constraint):
    """Pods with a licence label run on the nodes that the object of the licence names, on the last of them rather."""

    title = "licences"

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._nodes: dict[str, list[str]] = {}

    def check_ready(self, pod: PodInfo) -> None:
        name = pod.labels.get("example.com/licence", "")
        if name and name not in self._nodes:
            raise ReportedWaitError(f"waits for licence {name}", f"licence {name}", WaitReason.UNSCHEDULABLE)

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        name = pod.labels.get("example.com/licence", "")
        return self.only_nodes(self.tables.mask(self._nodes.get(name, ())), "without a licence") if name else ALL_NODES

    def score_nodes(self, pod: PodInfo) -> Floats | None:
        nodes = self._nodes.get(pod.labels.get("example.com/licence", ""))
        if not nodes:
            return None
        weights: Floats = np.zeros(len(self.tables.state.free))
        weights[self.tables.state.slots[nodes[-1]]] = 100.0
        return weights

    def watches(self) -> Iterable[Watch]:
        return (Watch(PATH, self),)

    def put(self, item: Mapping[str, Any]) -> None:
        name = item["metadata"]["name"]
        self._nodes[name] = item["spec"]["nodes"]
        self.event_occurred(f"licence {name}")
        self.nodes_freed()

    def remove(self, key: str) -> None:
        del self._nodes[key]

    def keys(self) -> list[str]:
        return list(self._nodes)


def licence(*nodes: str) -> dict[str, Any]:
    return {"metadata": {"name": "solver"}, "spec": {"nodes": list(nodes)}}


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_set, "CONSTRAINTS", (*constraint_set.CONSTRAINTS, Licences))


def retry_woken(memory: Memory) -> None:
    for key in sorted(memory.cache.tables.waits.woken):
        memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()


def test_it_keeps_pods_waiting_for_its_event_filters_nodes_and_prefers_some() -> None:
    memory = Memory(4)
    memory.pod("vision", "plain", 1)
    memory.pod("vision", "train", 4, labels=LABEL)
    memory.settle()
    assert memory.where() == {"plain": "n0"}
    assert memory.said == {"train": "waits for licence solver"}
    memory.constraints.get(Licences).put(licence("n1", "n2"))
    retry_woken(memory)
    assert memory.where()["train"] == "n2"


def test_its_reason_is_reported_and_more_nodes_are_another_try() -> None:
    memory = Memory(4)
    memory.constraints.get(Licences).put(licence("n1"))
    memory.pod("vision", "first", 8, labels=LABEL)
    memory.pod("vision", "second", 8, labels=LABEL)
    memory.settle()
    assert memory.where() == {"first": "n1"}
    assert "3 are excluded (3 without a licence)" in memory.said["second"]
    memory.constraints.get(Licences).put(licence("n1", "n3"))
    memory.settle()
    assert memory.where()["second"] == "n3"


def test_gangs_start_as_a_whole_and_grow_on_its_nodes() -> None:
    memory = Memory(4)
    memory.constraints.get(Licences).put(licence("n1"))
    memory.gang("vision", "train", 2, 8, labels=LABEL)
    memory.settle()
    assert memory.where() == {}
    assert memory.said["train-0"].startswith(
        "1 of 2 fit; fits on none of 4 nodes: 3 are excluded (3 without a licence)"
    )
    memory.constraints.get(Licences).put(licence("n1", "n3"))
    memory.settle()
    assert set(memory.where().values()) == {"n1", "n3"}
    memory.gang("vision", "train", 3, 8, size=2, first=2, labels=LABEL)
    memory.settle()
    assert memory.said["train-2"].startswith("the gang is running; additional pod: fits on none of 4 nodes")
    assert "without a licence" in memory.said["train-2"]


def test_the_daemon_watches_its_objects_and_retries_pods_at_its_event() -> None:
    async def run() -> SchedulerDaemon:
        daemon = SchedulerDaemon(
            Client(ClusterAccess("http://nobody", None, lambda: "")),
            SchedulerOptions(namespace="avactl-system", policy=POLICY),
        )
        for name in ("a", "b"):
            daemon.cache.put_node(offline.node(name))
        daemon.pod_handler.put(offline.pod("train", 0))
        item = offline.pod("solve", 0)
        item["metadata"]["labels"] = LABEL
        daemon.pod_handler.put(item)
        await daemon._turn()
        assert not daemon.cache.tables.pods["vision/solve"].assumed
        (reflector,) = (each for each in daemon._reflectors if each.kind == "licences")
        reflector._store.put(licence("b"))
        await daemon._turn()
        return daemon

    daemon = asyncio.run(run())
    assert daemon.cache.tables.pods["vision/train"].assumed
    assert daemon.cache.tables.pods["vision/solve"].assumed == "b"


@pytest.mark.parametrize(("licences", "words"), [([], "waits for licence solver"), ([licence("b")], "")])
def test_plans_read_its_objects_and_apply_it(licences: list[dict[str, Any]], words: str) -> None:
    item = offline.pod("solve", 0)
    item["metadata"]["labels"] = LABEL
    nodes = [offline.node("a", pool=""), offline.node("b", pool="")]
    world = SimulatedCluster(ClusterState("main", POLICY, {"nodes": nodes, "licences": licences, "pods": [item]}))
    world.settle()
    pod = world.cache.tables.pods["vision/solve"]
    assert (pod.node, world.said.get(pod.uid, "")) == ("" if words else "b", words)


def test_defragmentation_does_not_move_what_it_restricts() -> None:
    view = ClusterView(Client(ClusterAccess("http://nobody", None, lambda: "")), "avactl-system")
    view.cache.put_node(offline.node("a"))
    view.cache.rebuild()
    item = offline.pod("solve", 0, node="a")
    item["metadata"]["labels"] = LABEL
    view.put_pod(item)
    assert _pinned_reason(view, view.cache.tables.pods["vision/solve"]) == "restricted by licences"


def test_only_the_list_names_constraints() -> None:
    package = "avactl/scheduler/constraints/"
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "constraint", "constraint_set"}
    assert len(modules) >= len(constraint_set.CONSTRAINTS) - 1
    named = re.compile(rf"constraints[. ](?:import )?({'|'.join(sorted(modules))})\b")
    users = {path.relative_to(ROOT).as_posix() for path in tracked("avactl/**/*.py") if named.search(path.read_text())}
    assert {user for user in users if not user.startswith(package)} == set()
