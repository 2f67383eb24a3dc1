"""Passes over pipelines: one that waits, for a forge's rate limit for example, holds up no other team's."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from avactl.contracts.names import CONFIG_LABEL, PIPELINE_CONFIG
from avactl.daemons.delivery.daemon import DeliveryDaemon, DeliveryOptions
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from tools.waiting import wait_until_async


class Repository:
    """A branch with one commit."""

    head, branch = "4f53", "main"

    def fetch(self) -> str:
        return self.head


def test_a_pipeline_that_waits_holds_up_no_other_team(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: Counter[str] = Counter()

    async def scenario() -> None:
        going = asyncio.Event()
        client, repository = Client(ClusterAccess("http://nobody", None, lambda: "")), Repository()
        daemon = DeliveryDaemon(client, repository, None, DeliveryOptions("avactl-system", interval=0.01))  # type: ignore[arg-type]

        async def advance(name: str) -> None:
            begun[name] += 1
            if ".slow." in name:
                await going.wait()

        async def write(name: str, problem: str) -> None:
            pass

        monkeypatch.setattr(daemon._pipelines, "advance", advance)
        monkeypatch.setattr(daemon._maps, "write_problem", write)
        daemon._reflectors[0].synced.set()
        for name in [*(f"pipeline.slow.p{number}" for number in range(20)), "pipeline.vision.digits"]:
            metadata: dict[str, Any] = {"name": name, "labels": {CONFIG_LABEL: PIPELINE_CONFIG}, "resourceVersion": "1"}
            daemon._maps.put({"metadata": metadata})
        acting = asyncio.ensure_future(daemon._work())
        await wait_until_async(lambda: begun["pipeline.vision.digits"] >= 5)
        assert sum(count for name, count in begun.items() if ".slow." in name) == 4
        assert daemon._is_alive()
        waits = daemon._passes._begun
        waits[next(iter(waits))] -= daemon.stuck_after_s
        assert not daemon._is_alive()
        going.set()
        await wait_until_async(lambda: begun["pipeline.slow.p19"] >= 2)
        acting.cancel()

    asyncio.run(scenario())
