"""Canary by the number of pods: to the end, superseded, rolled back, and in and out of a rolling service."""

from __future__ import annotations

from tests.serving.world import World

CANARY = "{canary: {traffic: replicas, steps: [{percent: 25, pause: 1s}, {percent: 50, pause: 1s}]}}"


def test_a_canary_to_the_end(world: World) -> None:
    world.start()
    world.deploy(world.service(1, CANARY))
    world.until(lambda: world.settled("1"))
    assert world.deployment()["spec"]["paused"]

    world.deploy(world.service(2, CANARY))
    world.until(lambda: world.settled("2"))
    assert world.reasons() == ["RolloutStarted", "RolloutStep", "RolloutStep", "RolloutPromoted"]
    world.until(lambda: world.condition()[:2] == ("True", "Stable"))
    assert world.state()["outcome"] == "promoted"
    world.until(lambda: list(world.sets()) == ["2"])
    # The version that runs is the Deployment controller's: it scales it without the daemon.
    world.stop()
    world.scale(5)
    world.until(lambda: world.ready() == {"2": 5})


def test_a_rolling_service_changes_its_strategy_without_a_restart(world: World) -> None:
    world.start()
    world.deploy(world.service(1, "{rolling: {}}"))
    world.until(lambda: world.ready() == {"1": 4})
    pods = {pod["metadata"]["uid"] for pod in world.kube.list("v1", "Pod", world.team)}

    world.deploy(world.service(1, CANARY))
    world.until(lambda: world.condition()[1] == "Stable")
    assert {pod["metadata"]["uid"] for pod in world.kube.list("v1", "Pod", world.team)} == pods
    # And back in the middle of a rollout: the Deployment controller goes on from there.
    world.deploy(world.service(2, CANARY.replace("1s", "1h")))
    world.until(lambda: world.ready() == {"1": 3, "2": 1})
    world.deploy_rolling(2)
    world.until(lambda: world.ready() == {"2": 4})
    world.until(lambda: world.state() == {})


def test_another_template_begins_again_from_the_same_stable_version(world: World) -> None:
    world.start()
    slow = CANARY.replace("1s", "1h")
    world.deploy(world.service(1, slow))
    world.until(lambda: world.settled("1"))
    world.deploy(world.service(2, slow))
    world.until(lambda: world.ready() == {"1": 3, "2": 1})
    stable = world.state()["stable"]

    world.deploy(world.service(3, slow))
    world.until(lambda: world.ready() == {"1": 3, "3": 1})
    assert world.state()["stable"] == stable
    # An autoscaler changes the number of pods of a rollout.
    world.scale(8)
    world.until(lambda: world.ready() == {"1": 6, "3": 2})

    world.deploy(world.service(1, slow, "replicas: 8"))
    world.until(lambda: world.settled("1", 8))
    assert world.reasons().count("RolloutRolledBack") == 2
    assert "RolloutPromoted" not in world.reasons()
