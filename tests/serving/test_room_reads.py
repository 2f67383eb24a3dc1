"""Room is looked at with few requests and little memory, however many services wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from avactl.contracts.document import load
from avactl.contracts.serving import RolloutConfig, RolloutState
from avactl.daemons.serving import questions
from avactl.daemons.serving.questions import Room
from avactl.daemons.serving.stores import ANSWER
from avactl.daemons.serving.view import View

CONFIG = """{
  "traffic": "gateway", "steps": [{"percent": 50, "pause": 1}], "surge": 1, "inPlace": false, "port": 80,
  "ports": {"http": 80}, "route": "web-rollout"
}"""


class Cluster:
    """Answers lists: one machine with 4 CPUs, and pods of 1 CPU."""

    def __init__(self, pods: int) -> None:
        self.asked: Counter[str] = Counter()
        self.limits: list[int] = []
        self.pods = pods

    async def page(self, path: str, query: Mapping[str, str], most: int = 0) -> Any:
        kind = path.rpartition("/")[2]
        self.asked[kind] += 1
        if kind == "nodes":
            allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10"}
            return listed([{"metadata": {"name": "node-0"}, "spec": {}, "status": {"allocatable": allocatable}}])
        if kind == "pods":
            self.limits.append(int(query["limit"]))
            assert most == ANSWER
            assert "status.phase!=Succeeded" in query["fieldSelector"]
            return listed([{"spec": {"nodeName": "node-0", **asking("1")}}] * self.pods)
        return listed([])


def listed(items: list[Any]) -> dict[str, Any]:
    return {"metadata": {}, "items": items}


def asking(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}


def view(name: str) -> View:
    spec = {"replicas": 2, "template": {"metadata": {}, "spec": asking("1")}}
    metadata = {"name": name, "namespace": "vision", "uid": name}
    state = RolloutState(stable="aaaa", canary="bbbb", phase="starting")
    seen: tuple[Any, ...] = ({"metadata": metadata, "spec": spec}, load(RolloutConfig, CONFIG), state, {}, {}, {}, {})
    return View(*seen)


def test_all_services_share_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = Cluster(3)
        room = Room(cluster)  # type: ignore[arg-type]
        found = await asyncio.gather(*(room.problem(view(f"web-{number}")) for number in range(20)))
        assert set(found) == {"machines have room for 1 of 2 more pods, with 1 cpu each"}
        assert (cluster.asked["pods"], cluster.asked["nodes"]) == (1, 1)
        # A service that waits asks no quota again either.
        before = cluster.asked.copy()
        for _ in range(10):
            await room.problem(view("web-0"))
        assert cluster.asked == before
        # Tenants' pods may have 1.5 MB each: a page must fit.
        assert max(cluster.limits) <= 50
        cluster.pods = 2
        monkeypatch.setattr(questions, "_CACHE_LIFETIME_S", 0.0)
        assert await room.problem(view("web-0")) == ""

    asyncio.run(scenario())
