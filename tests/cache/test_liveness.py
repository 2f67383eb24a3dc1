"""The probe of the daemon: it fails when a loop no longer turns, and only then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from avactl.contracts.cache import TierConfig
from avactl.daemons.cache import daemon, runner
from avactl.daemons.cache.daemon import Daemon, Options
from avactl.daemons.cache.runner import STUCK, TierRunner
from avactl.kube import elected_daemon
from avactl.kube.client import Client

TIER = TierConfig(name="tier", engine="alluxio", role="read", masters=("127.0.0.1:9",), stores=())


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (daemon, elected_daemon, runner):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


def replica() -> Daemon:
    """A daemon that has seen all objects."""
    replica = Daemon(cast(Client, None), Options())
    for reflector in replica._reflectors:
        reflector.synced.set()
    return replica


async def until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


def test_a_pass_over_a_tier_that_does_not_end_is_noticed(clock: Clock) -> None:
    async def run() -> None:
        world = replica()
        tier = TierRunner(TIER, world, 0.01)
        passes = 0

        async def turns() -> None:
            nonlocal passes
            passes += 1

        async def fails() -> None:
            raise RuntimeError

        tier.tasks = [("turns", turns), ("fails", fails)]
        world.runners["tier"] = tier
        task = asyncio.ensure_future(tier.run())
        for _ in range(3):
            clock.now += STUCK
            world._turned, before = clock.now, passes
            await until(lambda before=before: passes > before + 1)
            assert world._is_alive()
        tier.tasks.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        tier = TierRunner(TIER, world, 0.01)
        tier.tasks = [("turns", turns), ("stuck", asyncio.Event().wait)]  # type: ignore[list-item]
        world.runners["tier"] = tier
        task, before = asyncio.ensure_future(tier.run()), passes
        await until(lambda: passes > before)
        assert world._is_alive()
        clock.now += STUCK
        world._turned, before = clock.now, passes
        await until(lambda: passes > before + 1)
        assert not world._is_alive()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_daemon_that_does_not_look_any_more_is_noticed(clock: Clock) -> None:
    async def run() -> None:
        world = replica()
        assert world._is_alive()
        clock.now += STUCK
        assert not world._is_alive()
        world._reflectors[0].synced.clear()
        assert world._is_alive(), "it waits for the API server"

    asyncio.run(run())


def test_a_tier_whose_tasks_ended_is_started_again() -> None:
    async def run() -> None:
        world = replica()
        world.configs.tiers["ns/tier"] = TIER
        await world._run_tiers()
        first = world.runners["tier"]
        world._running["tier"].cancel()
        await until(world._running["tier"].done)
        await world._run_tiers()
        assert world.runners["tier"] is not first
        assert not world._running["tier"].done()
        await world._stop(["tier"])

    asyncio.run(run())
