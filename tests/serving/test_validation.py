"""Validation Jobs: they run before requests come, and a version whose Job fails never gets any."""

from __future__ import annotations

from typing import Any

from tests.kinds.compiling import DIGEST
from tests.serving.world import World

JOB = f"job: {{image: registry.example.com/check{DIGEST}, command: [python, check.py], timeout: 1h}}"
GREEN = f"{{blueGreen: {{keep: 1s, analysis: {{{JOB}}}}}}}"


def job(world: World) -> dict[str, Any]:
    """Return the validation Job, once its pod runs."""

    def pods() -> Any:
        found = world.kube.list("batch/v1", "Job", world.team)
        return [each for each in found if (each.get("status") or {}).get("ready")]

    found: dict[str, Any] = world.until(pods)[0]
    return found


def end(world: World, found: dict[str, Any], phase: str, code: int) -> None:
    """Do what a kubelet does when the program of the Job's pod has ended."""
    label = found["metadata"]["name"]
    for pod in world.kube.list("v1", "Pod", world.team):
        if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == label:
            (status,) = pod["status"]["containerStatuses"]
            ended = {"exitCode": code, "reason": phase, "finishedAt": pod["status"]["startTime"]}
            ended["startedAt"] = pod["status"]["startTime"]
            statuses = [{**status, "ready": False, "state": {"terminated": ended}}]
            metadata = {"name": pod["metadata"]["name"], "namespace": world.team}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            world.kube.patch({**body, "status": {"phase": phase, "containerStatuses": statuses}}, subresource="/status")


def selected(world: World) -> str:
    service = world.kube.get("v1", "Service", "web", world.team)
    return str((service["spec"].get("selector") or {}).get("pod-template-hash", ""))


def test_a_failed_job_rolls_back_before_requests_come(world: World) -> None:
    world.start()
    world.deploy(world.service(1, GREEN))
    world.until(lambda: world.settled("1") and selected(world))
    stable = selected(world)
    world.deploy(world.service(2, GREEN))
    found = job(world)
    env = {each["name"]: each.get("value") for each in found["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["AVACTL_STABLE_URL"] == f"http://web-{stable}.{world.team}:8080"
    assert world.condition()[1] == "Validating"
    assert selected(world) == stable
    end(world, found, "Failed", 1)
    world.until(lambda: world.settled("1") and world.condition()[1] == "RolledBack")
    assert selected(world) == stable
    assert "RolloutStep" not in world.reasons()


def test_a_passed_job_lets_requests_come(world: World) -> None:
    world.start()
    world.deploy(world.service(1, GREEN))
    world.until(lambda: world.settled("1") and selected(world))
    stable = selected(world)
    world.deploy(world.service(2, GREEN))
    found = job(world)
    assert selected(world) == stable
    end(world, found, "Succeeded", 0)
    world.until(lambda: world.settled("2"))
    assert selected(world) not in ("", stable)
    assert world.reasons()[-1] == "RolloutPromoted"
