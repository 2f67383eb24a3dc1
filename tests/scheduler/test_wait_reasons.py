"""Cluster autoscalers buy machines for pods that a machine would help, and for no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.contracts.pod_annotations import AFTER, GANG_SIZE, LINK, START_WHEN_WARM, WITHIN
from avactl.kube.client import STRATEGIC
from avactl.scheduler.cycle.scheduling_cycle import OVERTAKEN, OVERTAKEN_S
from avactl.scheduler.objects.wait_reasons import WaitReason
from tests.scheduler.memory import Memory
from tests.scheduler.test_job_order import job
from tests.scheduler.test_quotas import team
from tests.scheduler.world import World

__all__ = ["team"]


def buys_a_machine(pod: dict[str, Any]) -> bool:
    """Return what Cluster Autoscaler (`isUnschedulable`) and Karpenter (`IsProvisionable`) ask of a pod's status."""
    status = pod.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each["type"] == "PodScheduled"]
    unschedulable = any(each["status"] == "False" and each.get("reason") == "Unschedulable" for each in conditions)
    return unschedulable and not pod["spec"].get("nodeName") and not status.get("nominatedNodeName")


def reason(memory: Memory, name: str = "train") -> WaitReason:
    memory.settle()
    assert "nodeName" not in memory.items[f"vision/{name}"]["spec"]
    return memory.reasons[name]


def test_a_pod_that_fits_nowhere_may_be_helped_by_a_machine() -> None:
    memory = Memory(machines=2)
    memory.pod("vision", "train", 9)
    assert reason(memory) is WaitReason.UNSCHEDULABLE
    memory.gang("vision", "gang", 3, 8)
    assert reason(memory, "gang-0") is WaitReason.UNSCHEDULABLE


def test_a_quota_is_not_helped_by_a_machine() -> None:
    memory = Memory(machines=2)
    memory.quota("vision", 4, borrow=0)
    memory.pod("vision", "train", 8)
    assert reason(memory) is WaitReason.QUOTA
    memory.gang("vision", "gang", 3, 8)
    assert reason(memory, "gang-0") is WaitReason.QUOTA
    # Both a quota and the cluster are too small: a machine alone would stay empty.
    memory.pod("vision", "large", 9)
    assert reason(memory, "large") is WaitReason.QUOTA


def test_victims_that_still_run_make_room() -> None:
    memory = Memory(machines=1)
    memory.pod("vision", "low", 8, priority=0)
    memory.settle()
    memory.pod("vision", "train", 8, priority=10)
    assert reason(memory) is WaitReason.PREEMPTION
    assert memory.evictions


def test_an_elastic_gang_takes_what_is_free() -> None:
    memory = Memory(machines=2)
    memory.gang("vision", "gang", 3, 8, size=2)
    assert reason(memory, "gang-2") is WaitReason.GROWTH


@pytest.mark.parametrize(
    "notes",
    [
        {LINK.name: "rope"},
        {WITHIN.name: "galaxy", GANG_SIZE.name: "1"},
        {START_WHEN_WARM.name: "{"},
        {AFTER.name: "{"},
        {GANG_SIZE.name: "many"},
    ],
)
def test_what_is_not_supported_runs_on_no_machine(notes: dict[str, str]) -> None:
    memory = Memory(machines=1, daemon=True)
    memory.pod(
        "vision", "train", 8, notes=notes, labels={"avactl.dev/gang": "train"} if GANG_SIZE.name in notes else {}
    )
    assert reason(memory) is WaitReason.UNSUPPORTED


def test_what_comes_first_is_waited_for() -> None:
    memory = Memory(machines=1, daemon=True)
    memory.jobs.put(job("etl-worker"))
    memory.pod("vision", "train", 8, notes={AFTER.name: '["etl-worker"]'})
    memory.pod("vision", "warm", 8, notes={START_WHEN_WARM.name: json.dumps({"avactl-system/imagenet/v3": 90})})
    assert reason(memory) is WaitReason.JOB
    assert reason(memory, "warm") is WaitReason.DATASET


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_what_an_autoscaler_sees(team: World) -> None:
    """On the API server, also of pods that a former release told otherwise."""
    team.node("a")
    team.node("b")
    team.ready()
    daemon = team.start()
    team.pod("runs", gpus=8)
    team.pod("runs-too", gpus=4)
    team.bound("runs", "runs-too")
    team.pod("over", gpus=1)
    words = team.waiting("over", "quota")
    team.gang("gang", 2, gpus=0, size=3)
    team.waiting("gang-0", "2 of 3 exist")
    team.pod("wide", nodeSelector={"disk": "ssd"})
    team.waiting("wide")
    pods = team.pods()
    assert {name: buys_a_machine(pods[name]) for name in ("over", "gang-0", "gang-1", "wide")} == {
        "over": False,
        "gang-0": False,
        "gang-1": False,
        "wide": True,
    }
    # The same message with the former reason, which the pod keeps until it is told again.
    team.kill(daemon)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    path = f"/api/v1/namespaces/{team.namespace}/pods/over/status"
    team.kube.request("PATCH", path, body={"status": {"conditions": [condition]}}, content_type=STRATEGIC)
    assert buys_a_machine(team.pods()["over"])
    team.start()
    team.wait(lambda: not buys_a_machine(team.pods()["over"]))
    assert team.waiting("over") == words


def test_a_gang_that_is_overtaken_is_told_so() -> None:
    memory = Memory(machines=2)
    for number in range(16):
        memory.pod("vision", f"small-{number}", 1)
    memory.settle()
    memory.gang("vision", "big", 2, 8)
    memory.settle()
    memory.drop("vision", "small-0")
    memory.pod("vision", "late", 1)
    memory.settle()
    assert "late" in memory.where()
    assert OVERTAKEN not in memory.said["big-0"]
    for number in range(2):
        memory.cache.tables.pods[f"vision/big-{number}"].seen -= OVERTAKEN_S
    memory.drop("vision", "small-1")
    memory.settle()
    assert memory.said["big-0"].endswith(f"; {OVERTAKEN}")
    # With a higher priority it does not wait for them.
    memory.gang("vision", "urgent", 2, 8, priority=10)
    memory.settle()
    assert len(memory.evictions[-1].victims) == 15


def test_a_gang_that_nothing_has_overtaken_is_not() -> None:
    memory = Memory(machines=2)
    memory.pod("vision", "old", 1)
    memory.settle()
    memory.gang("vision", "big", 2, 8)
    for number in range(2):
        memory.cache.tables.pods[f"vision/big-{number}"].seen -= OVERTAKEN_S
    memory.settle()
    assert memory.said["big-0"].startswith("needs 2 machines")
    assert OVERTAKEN not in memory.said["big-0"]
