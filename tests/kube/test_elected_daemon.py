"""The skeleton of daemons: only the leader works, and a replica leaves in order."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from prometheus_client import CollectorRegistry, Gauge

from avactl.kube.client import Client
from avactl.kube.elected_daemon import ElectedDaemon, ReplicaOptions, run_elected
from avactl.kube.leader import LostLeaseError
from tests.kube.fake_api_server import OneLease, server


class Recorder(ElectedDaemon):
    """Writes down what it does; its work ends when `finish` is set."""

    registry = CollectorRegistry()
    leader_gauge = Gauge("leader", "", registry=registry)
    stuck_after_s = 60.0

    def __init__(self, client: Client, lease: OneLease) -> None:
        super().__init__("", ReplicaOptions("system", "lease").leader(client))
        self._lease, self.done, self.finish = lease, list[str](), asyncio.Event()

    async def _work(self) -> None:
        self.done.append("work")
        await self.finish.wait()

    async def _clean_up(self) -> None:
        self.done.append("clean up, leading" if self._lease.lease["spec"]["holderIdentity"] else "clean up")

    def make_stuck(self) -> None:
        self._turned = monotonic() - self.stuck_after_s


async def until_tried(daemon: Recorder) -> None:
    assert daemon._leader is not None
    await daemon._leader.tried.wait()
    await asyncio.sleep(0.05)


def test_a_leader_works_and_cleans_up_before_it_releases_the_lease() -> None:
    lease = OneLease("")

    async def run() -> None:
        async with server(lease.answer) as client, asyncio.timeout(20):
            daemon = Recorder(client, lease)
            running = asyncio.ensure_future(daemon.run())
            await until_tried(daemon)
            await daemon._collect()
            assert (daemon.done, daemon.registry.get_sample_value("leader")) == (["work"], 1.0)
            assert daemon._is_alive()
            daemon.make_stuck()
            assert not daemon._is_alive()
            daemon.finish.set()
            await running
            assert daemon.done == ["work", "clean up, leading"]

    asyncio.run(run())
    assert lease.lease["spec"]["holderIdentity"] == ""


def test_a_replica_that_stands_by_does_not_work_is_alive_and_ends_at_once() -> None:
    lease = OneLease("elsewhere_1")

    async def run() -> None:
        async with server(lease.answer) as client, asyncio.timeout(20):
            daemon = Recorder(client, lease)
            running = asyncio.ensure_future(daemon.run())
            await until_tried(daemon)
            await daemon._collect()
            assert daemon.registry.get_sample_value("leader") == 0.0
            daemon.make_stuck()
            assert daemon._is_alive()
            daemon.stop.set()
            await running
            assert "work" not in daemon.done

    asyncio.run(run())
    assert lease.lease["spec"]["holderIdentity"] == "elsewhere_1"


def test_work_ends_when_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = OneLease("")
    monkeypatch.setattr("avactl.kube.leader.DEADLINE", 0.2)
    monkeypatch.setattr("avactl.kube.leader.RETRY", 0.05)

    async def run() -> None:
        async with server(lease.answer) as client, asyncio.timeout(20):
            daemon = Recorder(client, lease)
            running = asyncio.ensure_future(daemon.run())
            await until_tried(daemon)
            lease.take("elsewhere_1")
            with pytest.raises(ExceptionGroup) as raised:
                await running
            assert raised.group_contains(LostLeaseError)
            assert daemon.done == ["work", "clean up, leading"]

    asyncio.run(run())
    assert lease.lease["spec"]["holderIdentity"] == "elsewhere_1"


def test_replicas_end_with_their_work() -> None:
    lease = OneLease("")
    begun: list[Recorder] = []

    async def run() -> None:
        async with server(lease.answer) as client, asyncio.timeout(20):

            def new_replica(other: Client) -> Recorder:
                begun.append(Recorder(other, lease))
                begun[-1].stop.set()
                return begun[-1]

            await run_elected(Client(client._access), new_replica)

    asyncio.run(run())
    assert len(begun) == 1
