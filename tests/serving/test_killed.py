"""kill -9 of the daemon at random points: a version is promoted or rolled back, never something in between."""

from __future__ import annotations

import random
import time

import pytest

from tests.serving.world import World

EXPOSED = """replicas: 4
  expose: {{host: {team}.ai.example.com, paths: [/v1], grpc: {{host: {team}-grpc.ai.example.com}}}}"""
KINDS = ("HTTPRoute", "GRPCRoute")
CANARY = "{canary: {steps: [{percent: 25, pause: 1s}, {percent: 50, pause: 1s}]}}"


def killed(world: World, kills: int, seed: int) -> None:
    """Roll out and back while the daemon is killed; requests never go where no pod is ready."""
    order = random.Random(seed)
    exposed = EXPOSED.format(team=world.team)
    world.start()
    world.deploy(world.service(1, CANARY, exposed))
    world.until(lambda: all(world.weights(kind) == {"1": 100} for kind in KINDS))
    for kind in KINDS:
        world.accept(kind)
    world.until(lambda: world.settled("1"))
    current, latest, done = 1, 1, 0
    while done < kills:
        latest += 1
        back = order.random() < 0.5
        world.deploy(world.service(latest, CANARY, exposed))
        if back:
            time.sleep(order.uniform(0, 3))
            world.deploy(world.service(current, CANARY, exposed))
        else:
            current = latest
        goal = str(current)

        def ended(goal: str = goal) -> bool:
            return world.settled(goal) and all(world.weights(kind) == {goal: 100} for kind in KINDS)

        while done < kills and not ended():
            world.kill()
            done += 1
            world.start()
            ends = time.monotonic() + order.uniform(0.8, 3.0)
            while time.monotonic() < ends:
                weights, ready = world.weights_and_ready(*KINDS)
                served = {each for found in weights for each, weight in found.items() if weight}
                assert all(ready.get(each) for each in served), (weights, ready)
                assert sum(ready.values()) >= 4
                time.sleep(0.05)
        world.until(ended)
        # Nothing is left of the other version, and it is the last outcome that the state tells.

        def alone(goal: str = goal) -> bool:
            return list(world.sets()) == [goal]

        world.until(alone)
        assert world.state()["stable"] in world.sets()[goal]["metadata"]["name"]


def test_killed_at_a_few_points(world: World) -> None:
    killed(world, kills=8, seed=7)


@pytest.mark.slow
def test_killed_at_a_hundred_points(world: World) -> None:
    killed(world, kills=100, seed=11)
