"""How a fault of a GPU begins and ends on its node, check by check."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from avactl.contracts.gpu_faults import GpuFault
from avactl.daemons.topology.gpu_health import GpuHealthWatcher, LinkState
from avactl.daemons.topology.options import TopologyOptions
from avactl.kube.client import UnreachableError
from tests.hardware.smi_logs import health
from tests.hardware.topo_matrices import library_machine, render, rows
from tests.kinds.compiling import DIGEST, body, compiled

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{topology: true}}
---
kind: NodePool
metadata: {{name: dgx}}
spec: {{cluster: main, machineType: dgx1-v100, count: 2}}
"""
RESET = "<gpu_recovery_action>Reset</gpu_recovery_action>"
PROBATION = 600.0


class Node:
    """The API server, as far as a daemon sees it, and the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.down = folder, 0.0, False
        self.conditions: dict[str, dict[str, Any]] = {}
        self.events: list[str] = []
        self.writes = 0
        (folder / "pool.json").write_text(
            body(compiled(SPECS), "ConfigMap", "avactl-pool-dgx", "avactl-system")["data"]["pool.json"]
        )
        self.links = LinkState()
        self.topology(render(rows(library_machine("dgx1-v100"))))
        self.restart()

    def topology(self, text: str) -> None:
        (self.folder / "matrix").write_text(text)

    def restart(self) -> None:
        """Start another daemon, after the last one was killed."""
        cat = "cat", str(self.folder / "matrix")
        show = "cat", str(self.folder / "health")
        options = TopologyOptions("n", self.folder / "pool.json", cat, 300.0, show, 30.0, PROBATION)
        client: Any = self
        self.watcher = GpuHealthWatcher(client, client, options, self.links, lambda: self.now)

    async def request(self, *_: object, **__: object) -> dict[str, Any]:
        if self.down:
            raise UnreachableError("down")
        status = {"conditions": list(self.conditions.values()), "capacity": {"nvidia.com/gpu": "8"}}
        return {"metadata": {"name": "n", "uid": "n"}, "status": status}

    async def send(self, method: str, path: str, change: dict[str, Any], **_: object) -> None:
        assert (method, path) == ("PATCH", "/api/v1/nodes/n/status")
        self.writes += 1
        for each in change["status"]["conditions"]:
            self.conditions[each["type"]] = each

    async def record(self, regarding: object, reason: str, note: str, warning: bool) -> None:
        self.events.append(reason)

    def check(self, output: str, seconds: float = 30.0) -> tuple[str, str]:
        """A check, and the condition after it."""
        self.now += seconds
        (self.folder / "health").write_text(output)
        try:
            asyncio.run(self.watcher.check())
        except UnreachableError:
            return "", ""
        found = self.conditions["avactl.dev/GPUsHealthy"]
        return found["status"], found["message"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


FAULT = ("False", "GPU 3 NoExecute: needs a reset")
REPAIRED = ("False", "GPU 3 NoSchedule: repaired, used again after 600 s without a fault")


def test_a_fault_begins_at_once_and_ends_after_the_probation(node: Node) -> None:
    assert node.check(health())[0] == "True"
    assert node.check(health({3: RESET})) == FAULT
    assert node.check(health()) == REPAIRED
    assert node.check(health(), PROBATION - 60) == REPAIRED
    assert node.check(health({3: RESET})) == FAULT
    assert node.check(health(), 2 * PROBATION) == REPAIRED, (
        "the probation begins with the first check that finds nothing"
    )
    assert node.check(health(), PROBATION)[0] == "True"
    assert node.events == ["GPUsFaulty", "GPUsRecovered"]


def test_a_check_that_fails_ends_no_fault(node: Node) -> None:
    assert node.check("") == ("Unknown", f"`cat {node.folder}/health`: no output")
    node.check(health({3: RESET}))
    assert node.check("") == FAULT
    assert node.check(health()) == REPAIRED
    assert node.check("") == REPAIRED
    assert node.check(health(), PROBATION) == REPAIRED, "it begins anew"


def test_a_daemon_that_is_killed_ends_no_fault_and_tells_nothing_twice(node: Node) -> None:
    node.check(health({3: RESET}))
    for _ in range(3):
        node.restart()
        assert node.check(health({3: RESET})) == FAULT
    node.restart()
    assert node.check(health(), PROBATION) == REPAIRED
    node.restart()
    assert node.check(health(), PROBATION) == REPAIRED
    assert node.check(health(), PROBATION)[0] == "True"
    assert node.events == ["GPUsFaulty", "GPUsRecovered"]


def test_an_api_server_that_is_away(node: Node) -> None:
    node.check(health())
    node.down = True
    assert node.check(health({3: RESET})) == ("", "")
    node.down = False
    assert node.check(health({3: RESET})) == FAULT


def test_a_machine_that_does_not_match_stays_out(node: Node) -> None:
    node.check(health({3: RESET}))
    table = rows(library_machine("dgx1-v100"))
    table[1][2] = table[2][1] = "SYS"
    node.topology(render(table))
    assert node.check(health(), PROBATION)[1].startswith(
        "GPU 3 NoSchedule: not used again: not a dgx1-v100: GPU0 to GPU1"
    )
    assert node.check(health(), PROBATION)[0] == "False"


def test_links_that_are_down(node: Node) -> None:
    node.check(health())
    node.links.faults = [GpuFault(2, False, "16 of 18 NVLinks to NVSwitch: 2 down")]
    assert node.check(health()) == ("False", "GPU 2 NoSchedule: 16 of 18 NVLinks to NVSwitch: 2 down")
    node.links.faults = ()
    assert node.check(health())[1].startswith("GPU 2 NoSchedule: repaired")


def test_a_driver_that_knows_fewer_gpus_than_the_kubelet(node: Node) -> None:
    assert node.check(health(gpus=7)) == ("False", "machine NoSchedule: the driver knows 7 GPUs, the kubelet 8")


def test_a_sound_machine_is_written_rarely(node: Node) -> None:
    for _ in range(20):
        node.check(health())
    assert node.writes <= 3
