"""Pods that start after Jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.contracts.pod_annotations import AFTER
from tests.scheduler.memory import Memory
from tests.scheduler.world import World


def job(name: str, *conditions: str, namespace: str = "vision", suspend: bool = False) -> dict[str, Any]:
    found = [{"type": condition, "status": "True"} for condition in conditions]
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"suspend": suspend}, "status": {"conditions": found}}


def told(memory: Memory, *items: dict[str, Any]) -> str:
    """The message of the pod `train` after changes of Jobs; empty once it is bound."""
    for item in items:
        memory.jobs.put(item)
    for key in sorted(memory.cache.tables.waits.woken):
        memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()
    return "" if "nodeName" in memory.items["vision/train"]["spec"] else memory.said["train"]


def test_a_pod_waits_for_each_of_its_jobs_and_says_for_which() -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, notes={AFTER.name: '["etl-worker","split-worker"]'})
    assert told(memory) == "waits for Job etl-worker, which does not exist"
    assert told(memory, job("etl-worker", suspend=True)) == "waits for Job etl-worker, which is suspended"
    assert told(memory, job("etl-worker")) == "waits for Job etl-worker, which has not ended"
    assert told(memory, job("etl-worker", "FailureTarget", "Failed")) == "waits for Job etl-worker, which has failed"
    assert told(memory, job("etl-worker", "Complete")) == "waits for Job split-worker, which does not exist"
    assert told(memory, job("split-worker", "Complete", namespace="other")).endswith("which does not exist")
    assert told(memory, job("split-worker", "Complete")) == ""


def test_a_new_run_is_waited_for() -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, notes={AFTER.name: '["etl-worker"]'})
    memory.jobs.put(job("etl-worker", "Complete"))
    memory.jobs.remove("vision/etl-worker")
    assert told(memory).endswith("which does not exist")
    assert memory.jobs.keys() == []


def test_who_waits_holds_nothing_back() -> None:
    memory = Memory()
    memory.gang("vision", "gang", 2, 8, notes={AFTER.name: '["etl-worker"]'})
    memory.pod("vision", "train", 8)
    assert told(memory) == ""
    assert memory.said["gang-0"].startswith("waits for Job")


@pytest.mark.parametrize(
    "text", ["{", "{}", "[]", "[1]", '[""]', json.dumps(["j"] * 65), json.dumps(["j" * 64]), "9" * 99_999]
)
def test_an_invalid_annotation_is_the_pods_own_problem(text: str) -> None:
    memory = Memory()
    memory.pod("vision", "odd", 1, notes={AFTER.name: text})
    memory.pod("vision", "train", 8)
    assert told(memory) == ""
    assert AFTER.name in memory.said["odd"]
    assert len(memory.said["odd"]) < 500


def test_the_daemon_reads_jobs_with_its_role_and_may_be_killed_meanwhile(world: World) -> None:
    world.node("n0")
    container = {"name": "main", "image": "registry.example.com/x:1", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": "etl", "namespace": world.namespace}
    upstream = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    world.kube.create({**upstream, "spec": {"suspend": True, "template": template}})
    world.pod("train", 8, notes={AFTER.name: '["etl"]'})
    first = world.start()
    world.waiting("train", "waits for Job etl, which is suspended")
    world.kill(first)
    world.free_lease()
    world.kube.patch({**upstream, "spec": {"suspend": False}})
    world.start()

    def placed() -> list[str]:
        nodes = world.nodes_of()
        return [name for name, node in nodes.items() if name.startswith("etl-") and node]

    world.wait(placed)
    assert "train" not in world.nodes_of() or not world.nodes_of()["train"]
    (name,) = placed()
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": world.namespace}}
    world.kube.patch({**own, "status": {"phase": "Succeeded"}}, subresource="/status")
    world.bound("train")
    done = world.kube.get("batch/v1", "Job", "etl", world.namespace)
    assert done["status"]["succeeded"] == 1
    assert world.defects() == []
