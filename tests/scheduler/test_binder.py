"""Bindings in flight: few connections for a burst, more while bindings wait."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from avactl.kube.client import Client, Rate
from avactl.scheduler.interfaces import BindRequest
from avactl.scheduler.writers import binder
from avactl.scheduler.writers.binder import BINDING_WORKERS, FIRST_WORKERS, Binder
from avactl.scheduler.writers.pod_reporter import PodReporter
from tests.scheduler.memory import Memory
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
