"""The loop of the daemon: one odd pod stops nobody, and who waits is tried again as soon as something came free."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from avactl.contracts.scheduling import PlacementPolicy
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from avactl.scheduler import daemon as daemons
from avactl.scheduler.daemon import SchedulerDaemon, SchedulerOptions
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup
from tools.waiting import wait_until_async

POLICY = PlacementPolicy(cluster="main", system_namespace="avactl-system", levels=(), gpu_driver="gpu.example.com")


def pod(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": metadata, "spec": {"schedulerName": "avactl", "containers": [container], **spec}}


def daemon_of_one_machine() -> SchedulerDaemon:
    daemon = SchedulerDaemon(
        Client(ClusterAccess("http://nobody", None, lambda: "")), SchedulerOptions("avactl-system", policy=POLICY)
    )
    status = {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}}
    daemon.cache.put_node({"metadata": {"name": "a"}, "spec": {}, "status": status})
    return daemon


def test_a_decision_that_fails_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> SchedulerDaemon:
        daemon = daemon_of_one_machine()
        for name in ("odd", "plain"):
            daemon.pod_handler.put(pod(name))
        decide = daemon.cycle.decide

        def sometimes(unit: QueuedPodGroup) -> None:
            if unit.key == "odd":
                raise KeyError("odd")
            decide(unit)

        monkeypatch.setattr(daemon.cycle, "decide", sometimes)
        await daemon._turn()
        return daemon

    daemon = asyncio.run(run())
    assert daemon.cache.tables.pods["default/plain"].assumed == "a"
    assert daemon.cache.tables.pods["default/odd"].message == "internal error of the scheduler: KeyError('odd')"
    assert daemon.queue.pop() is None


def test_what_comes_free_right_after_a_try_is_not_left_until_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "_TICK", 3600.0)

    async def run() -> None:
        daemon = daemon_of_one_machine()
        daemon.pod_handler.put(pod("runs", "4", nodeName="a"))
        daemon.pod_handler.put(pod("waits", "4"))
        for reflector in daemon._reflectors:
            reflector.synced.set()
        deciding = asyncio.create_task(daemon._decide())
        await wait_until_async(lambda: daemon.cache.tables.pods["default/waits"].message)
        daemon._retried = monotonic()
        daemon.pod_handler.drop("default/runs")
        daemon._wake.set()
        await wait_until_async(lambda: daemon.cache.tables.pods["default/waits"].assumed)
        deciding.cancel()

    asyncio.run(run())


def test_a_replica_that_takes_over_after_long_is_alive_while_it_lists_anew() -> None:
    async def run() -> None:
        client = Client(ClusterAccess("http://nobody", None, lambda: ""))
        daemon = SchedulerDaemon(client, SchedulerOptions("avactl-system", "lease", policy=POLICY))
        for reflector in daemon._reflectors:
            reflector.synced.set()
        daemon._turned -= 3600.0  # so long did it stand by
        deciding = asyncio.ensure_future(daemon._lead())
        assert daemon._leader is not None
        daemon._leader.since = monotonic()
        daemon._leader.won.set()
        await asyncio.sleep(0.01)
        assert not deciding.done()
        assert daemon._is_alive()
        deciding.cancel()

    asyncio.run(run())
