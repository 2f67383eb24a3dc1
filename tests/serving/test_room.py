"""No room for another version: the rollout waits and says what is missing, or goes on in place."""

from __future__ import annotations

from typing import Any

from tests.serving.world import World

STEPS = "traffic: replicas, steps: [{percent: 25, pause: 1s}, {percent: 50, pause: 1s}]"


def quota(world: World, pods: int) -> None:
    metadata = {"name": "pods", "namespace": world.team}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": {"pods": str(pods)}},
    }
    world.kube.apply(body)
    world.until(
        lambda: (
            world.kube.get("v1", "ResourceQuota", "pods", world.team).get("status", {}).get("used", {}).get("pods")
            == "4"
        )
    )


def test_a_full_quota_is_said_and_the_live_version_untouched(world: World) -> None:
    world.start()
    world.deploy(world.service(1, f"{{canary: {{{STEPS}}}}}"))
    world.until(lambda: world.settled("1"))
    quota(world, 4)
    pods = {pod["metadata"]["uid"] for pod in world.kube.list("v1", "Pod", world.team)}
    world.deploy(world.service(2, f"{{canary: {{{STEPS}}}}}"))
    world.until(lambda: world.condition()[1] == "NoRoom")
    assert world.condition()[2] == "quota pods: 1 more pods need 1 pods, 0 of 4 are left"
    assert "RolloutNoRoom" in world.reasons()
    assert {pod["metadata"]["uid"] for pod in world.kube.list("v1", "Pod", world.team)} == pods
    # Room comes later.
    quota(world, 5)
    world.until(lambda: world.settled("2"))


def test_machines_without_room(world: World) -> None:
    world.start()
    world.deploy(world.service(1, "{blueGreen: {keep: 1s}}", "replicas: 4"))
    world.until(lambda: world.settled("1"))
    big = world.service(2, "{blueGreen: {keep: 1s}}").replace("cpu: 1,", "cpu: 40,")
    world.deploy(big)
    world.until(lambda: world.condition()[1] == "NoRoom")
    assert world.condition()[2] == "machines have room for 2 of 4 more pods, with 40 cpu, 1Gi memory each"
    assert world.ready() == {"1": 4}


def test_in_place_in_a_full_quota(world: World) -> None:
    world.start()
    canary = f"{{canary: {{{STEPS}, inPlace: true}}}}"
    world.deploy(world.service(1, canary))
    world.until(lambda: world.settled("1"))
    quota(world, 4)
    least, in_place = 4, False

    def done() -> bool:
        nonlocal least, in_place
        least, in_place = min(least, sum(world.ready().values())), in_place or world.state().get("in_place", False)
        return world.settled("2")

    world.deploy(world.service(2, canary))
    world.until(done)
    # One pod fewer is seen only if its successor takes a moment to become ready.
    assert (in_place, least >= 3) == (True, True)


def test_rolled_back_in_a_full_quota(world: World) -> None:
    world.start()
    canary = f"{{canary: {{{STEPS}, inPlace: true}}}}".replace("1s", "1h")
    world.deploy(world.service(1, canary))
    world.until(lambda: world.settled("1"))
    quota(world, 4)
    world.deploy(world.service(2, canary))
    world.until(lambda: world.ready() == {"1": 3, "2": 1})
    world.deploy(world.service(1, canary))
    world.until(lambda: world.settled("1"))


def test_the_first_version_without_room(world: World) -> None:
    """There is no rollout yet: the condition says why the service has no pods, and an Event does once."""
    world.start()
    canary = f"{{canary: {{{STEPS}}}}}"
    world.deploy(world.service(1, canary).replace("cpu: 1", "cpu: 1000"))
    world.until(lambda: "Insufficient cpu" in world.condition()[2])
    assert world.condition()[:2] == ("False", "Starting")
    assert world.reasons() == ["RolloutStarting"]
    world.deploy(world.service(2, canary))
    world.until(lambda: world.settled("2"))
    world.until(lambda: world.condition()[1] == "Stable")
