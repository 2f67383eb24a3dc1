"""Passes over services: one team's take no other team's turn, and one that is due is not forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from avactl.contracts.names import ROLLOUT
from avactl.daemons.serving.daemon import ServingDaemon, ServingOptions
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from tools.waiting import wait_until_async


def deployment(key: str) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    metadata = {"namespace": namespace, "name": name, "resourceVersion": "1", "annotations": {ROLLOUT: "{}"}}
    return {"metadata": metadata, "spec": {}}


class Passes:
    """A daemon whose passes over services in `slow` wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
        self.begun: Counter[str] = Counter()
        self.going = asyncio.Event()
        self.daemon = ServingDaemon(
            Client(ClusterAccess("http://nobody", None, lambda: "")), ServingOptions("avactl-system", interval=60.0)
        )
        for reflector in self.daemon._reflectors:
            reflector.synced.set()
        for key in keys:
            self.daemon._stores["Deployment"].put(deployment(key))
        monkeypatch.setattr(self.daemon, "_advance", self._advance)

    async def _advance(self, key: str) -> None:
        key = key.removeprefix("Deployment/")
        self.begun[key] += 1
        if key.startswith("slow/"):
            await self.going.wait()

    async def until(self, key: str, count: int) -> None:
        def begun() -> bool:
            self.daemon._wake.set()
            return self.begun[key] >= count

        await wait_until_async(begun, f"{count} passes over {key}")


def test_a_team_s_slow_queries_hold_up_no_other_team(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        passes = Passes(monkeypatch, *(f"slow/web-{number}" for number in range(100)), "vision/web")
        acting = asyncio.ensure_future(passes.daemon._work())
        await passes.until("vision/web", 5)
        assert sum(count for key, count in passes.begun.items() if key.startswith("slow/")) == 4
        # Waiting for a turn is not being stuck; a pass that does not end is.
        assert passes.daemon._is_alive()
        begun = passes.daemon._passes._begun
        begun[next(iter(begun))] -= passes.daemon.stuck_after_s
        assert not passes.daemon._is_alive()
        passes.going.set()
        for number in range(100):
            await passes.until(f"slow/web-{number}", 2)
        acting.cancel()

    asyncio.run(scenario())


def test_what_changes_during_a_pass_is_seen_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        passes = Passes(monkeypatch, "slow/web")
        acting = asyncio.ensure_future(passes.daemon._work())
        await passes.until("slow/web", 1)
        passes.daemon._wake.set()
        await wait_until_async(lambda: any(passes.daemon._passes._active.values()))
        passes.going.set()
        await wait_until_async(lambda: passes.begun["slow/web"] >= 2)
        acting.cancel()

    asyncio.run(scenario())


def test_a_defect_with_one_object_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        passes = Passes(monkeypatch, "vision/web")
        passes.daemon._stores["Service"].put({"metadata": {"name": "a-headless", "namespace": "vision"}, "spec": {}})

        async def fail(key: str) -> None:
            passes.begun[key] += 1
            raise ZeroDivisionError

        monkeypatch.setattr(passes.daemon._weights, "sync", fail)
        acting = asyncio.ensure_future(passes.daemon._work())
        await passes.until("vision/a-headless", 2)
        await passes.until("vision/web", passes.begun["vision/web"] + 1)
        acting.cancel()

    asyncio.run(scenario())
