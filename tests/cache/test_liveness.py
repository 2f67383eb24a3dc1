"""The probe of the daemon: it fails when a loop no longer turns, and only then."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from avactl.contracts.cache import TierConfig
from avactl.daemons.cache import daemon, runner
from avactl.daemons.cache.daemon import CacheDaemon, CacheOptions
from avactl.daemons.cache.runner import STUCK, TierRunner
from avactl.kube import elected_daemon
from avactl.kube.client import Client
from tests.fake_clock import FakeClock
from tools.waiting import wait_until_async

TIER = TierConfig(name="tier", engine="alluxio", role="read", masters=("127.0.0.1:9",), stores=())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock().set_in(monkeypatch, daemon, elected_daemon, runner)


def replica() -> CacheDaemon:
    """A daemon that has seen all objects."""
    replica = CacheDaemon(cast(Client, None), CacheOptions())
    for reflector in replica._reflectors:
        reflector.synced.set()
    return replica


def test_a_pass_over_a_tier_that_does_not_end_is_noticed(clock: FakeClock) -> None:
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

        async def more_passes() -> None:
            world._turned, begun = clock.now, passes
            await wait_until_async(lambda: passes > begun + 1)

        for _ in range(3):
            clock.advance(STUCK)
            await more_passes()
            assert world._is_alive()
        tier.tasks.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        tier = TierRunner(TIER, world, 0.01)
        tier.tasks = [("turns", turns), ("stuck", asyncio.Event().wait)]  # type: ignore[list-item]
        world.runners["tier"] = tier
        task, before = asyncio.ensure_future(tier.run()), passes
        await wait_until_async(lambda: passes > before)
        assert world._is_alive()
        clock.advance(STUCK)
        await more_passes()
        assert not world._is_alive()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_daemon_that_does_not_look_any_more_is_noticed(clock: FakeClock) -> None:
    async def run() -> None:
        world = replica()
        assert world._is_alive()
        clock.advance(STUCK)
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
        await wait_until_async(world._running["tier"].done)
        await world._run_tiers()
        assert world.runners["tier"] is not first
        assert not world._running["tier"].done()
        await world._stop(["tier"])

    asyncio.run(run())
