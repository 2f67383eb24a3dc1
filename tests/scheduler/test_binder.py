"""Bindings in flight: few connections for a burst, more while bindings wait."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import patch

from avactl.kube.client import Client, Rate
from avactl.scheduler.interfaces import BindRequest
from avactl.scheduler.writers import binder
from avactl.scheduler.writers.binder import BINDING_WORKERS, FIRST_WORKERS, Binder
from avactl.scheduler.writers.pod_reporter import PodReporter
from tests.scheduler.memory import Memory
from tests.scheduler.test_claims import Extended
from tools.waiting import wait_until_async


class Slow:
    """An API server that answers only once it may."""

    def __init__(self) -> None:
        self.busy, self.bound, self.answers = 0, 0, asyncio.Event()

    async def send(self, method: str, path: str, body: Any) -> None:
        self.busy += 1
        await self.answers.wait()
        self.busy, self.bound = self.busy - 1, self.bound + 1


async def _bind(pods: int) -> None:
    world, server = Memory(1), Slow()
    rate = Rate(0, 0)
    reporter = PodReporter(cast(Client, server), rate)
    made = Binder(cast(Client, server), rate, world.cache, reporter, lambda pod, result: None, lambda: True)
    work = asyncio.create_task(made.run())
    for number in range(pods):
        world.pod("a", f"p{number}")
        pod = world.cache.tables.pods[f"a/p{number}"]
        pod.assumed = "n0"
        made.put(BindRequest(pod, "n0", "", 0.0))
    await wait_until_async(lambda: server.busy >= FIRST_WORKERS)
    assert server.busy <= FIRST_WORKERS + 1  # each worker more has a connection more to open
    await wait_until_async(lambda: server.busy == BINDING_WORKERS)
    server.answers.set()
    await wait_until_async(lambda: server.bound == pods)
    assert made.in_flight == 0
    work.cancel()


def test_a_burst_of_bindings_does_not_open_all_connections_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(binder, "GROW_INTERVAL_S", 0.01)
    asyncio.run(_bind(200))


class Ungated:
    """An API server that stores claims, and drops the field of a pod's status whose gate is off."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.sent: list[tuple[str, str]] = []

    async def request(self, method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        if "/pods/" in path:
            return {"status": {"phase": "Pending"}}
        if method == "POST":
            made = {**body, "metadata": {**body["metadata"], "uid": "made", "resourceVersion": "1"}}
            self.claims[body["metadata"]["name"]] = made
            return made
        item = self.claims[path.removesuffix("/status").rpartition("/")[2]]
        version = str(int(item["metadata"]["resourceVersion"]) + 1)
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": version}, **body.get("status", {})}
        item = {**item, "status": body.get("status") or item.get("status") or {}}
        self.claims[item["metadata"]["name"]] = item
        return item

    async def send(self, method: str, path: str, body: Any, **_: Any) -> None:
        self.sent.append((method, path))


async def _bind_ungated() -> None:
    world, server, ended = Extended(1), Ungated(), list[str]()
    world.settle()
    orders: list[BindRequest] = []
    with patch.object(world, "put", orders.append):
        world.pod("a", "p", 8)
        world.settle()
    (order,) = orders
    rate = Rate(0, 0)
    reporter = PodReporter(cast(Client, server), rate)
    made = Binder(
        cast(Client, server), rate, world.cache, reporter, lambda pod, result: ended.append(result), lambda: True
    )
    await made._bind(order)
    await asyncio.gather(*made._deallocations.values())
    pod = world.cache.tables.pods["a/p"]
    assert ended == [binder.REFUSED]
    assert "DRAExtendedResource" in pod.message
    (name,) = server.claims
    assert server.sent == [("DELETE", f"/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/{name}")]
    assert not pod.assumed
    assert not pod.claims
    assert not any(map(world.cache.dra.devices.in_use, world.cache.dra.keys("n0", 255)))


def test_a_claim_that_the_kubelet_would_not_see_is_removed() -> None:
    asyncio.run(_bind_ungated())
