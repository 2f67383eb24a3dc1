"""Timeouts of jobs: the clock starts with the binding, and a job whose time is up is not tried again."""

from __future__ import annotations

from typing import Any

from avactl.contracts.names import TIMED_OUT
from avactl.contracts.pod_annotations import TIMEOUT
from tests.scheduler.world import World


def _timed_out(world: World, name: str) -> bool:
    conditions = world.pods()[name].get("status", {}).get("conditions", [])
    return any(each["type"] == TIMED_OUT and each["status"] == "True" for each in conditions)


def test_the_clock_starts_when_a_pod_is_bound(world: World) -> None:
    world.pod("waits", 8, notes={TIMEOUT.name: "1"})
    world.pod("hostile", 0, notes={TIMEOUT.name: "9" * 5000})
    world.start()
    world.waiting("waits")
    world.waiting("hostile", f"annotation {TIMEOUT.name}: its value has 5000 characters")
    world.node("n0")
    world.bound("waits")
    world.pod("unlimited", 0)
    world.bound("unlimited")
    world.wait(lambda: _timed_out(world, "waits"))
    assert not _timed_out(world, "unlimited")
    assert not _timed_out(world, "hostile")


def test_a_job_whose_time_is_up_fails_without_another_try(world: World) -> None:
    world.node("n0")
    container = {"name": "main", "image": "registry.example.com/x:1"}
    pod: dict[str, Any] = {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [container]}
    rules = [{"action": "FailJob", "onPodConditions": [{"type": TIMED_OUT, "status": "True"}]}]
    world.kube.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": world.namespace},
            "spec": {
                "completionMode": "Indexed",
                "completions": 1,
                "parallelism": 1,
                "backoffLimitPerIndex": 3,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": rules},
                "template": {"metadata": {"annotations": {TIMEOUT.name: "1"}}, "spec": pod},
            },
        }
    )
    world.wait(lambda: world.pods())
    (name,) = world.pods()
    world.start()
    world.bound(name)
    world.wait(lambda: _timed_out(world, name))
    # As the kubelet does at the deadline of the pod.
    found = world.pods()[name]
    ended = {"phase": "Failed", "reason": "DeadlineExceeded"}
    world.kube.replace({**found, "status": {**found["status"], **ended}}, subresource="/status")

    def failed() -> bool:
        job = world.kube.get("batch/v1", "Job", "train", world.namespace)
        conditions = {each["type"]: each for each in job.get("status", {}).get("conditions", [])}
        return bool(conditions.get("Failed", {}).get("reason") == "PodFailurePolicy")

    world.wait(failed)
