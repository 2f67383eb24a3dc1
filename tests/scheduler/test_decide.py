"""One odd pod must not stop the scheduling of all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from avactl.kube.access import Access
from avactl.kube.client import Client
from avactl.scheduler.daemon import Daemon, Options
from avactl.scheduler.pools import Policy
from avactl.scheduler.queue import Unit

POLICY = Policy("main", "avactl-system", (), "gpu.example.com")


def pod(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": metadata, "spec": {"schedulerName": "avactl", "containers": [container]}}


def test_a_decision_that_fails_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Daemon:
        daemon = Daemon(Client(Access("http://nobody", None, lambda: "")), Options(POLICY))
        status = {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}}
        daemon.fleet.put_node({"metadata": {"name": "a"}, "spec": {}, "status": status})
        for name in ("odd", "plain"):
            daemon.intake.put(pod(name))
        decide = daemon.decider.decide

        def sometimes(unit: Unit) -> None:
            if unit.key == "odd":
                raise KeyError("odd")
            decide(unit)

        monkeypatch.setattr(daemon.decider, "decide", sometimes)
        await daemon._turn()
        return daemon

    daemon = asyncio.run(run())
    assert daemon.fleet.pods["default/plain"].assumed == "a"
    assert daemon.fleet.pods["default/odd"].message == "internal error of the scheduler: KeyError('odd')"
    assert daemon.queue.pop() is None
