"""kill -9 in the middle, watches that break, an API server that goes away: no GPU twice, no partial gang."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from tests.scheduler.world import LEASE, SYSTEM, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
MACHINES = 12


def check_gpus(world: World) -> None:
    """Every GPU has at most one holder."""
    held: dict[tuple[str, int], str] = {}
    for name, pod in world.pods().items():
        node = pod["spec"].get("nodeName")
        if not node:
            continue
        devices = world.devices_of(pod)
        wanted = int(pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu", 0))
        assert len(devices) == wanted, name
        for gpu in devices:
            assert (node, gpu) not in held, f"{name} and {held[node, gpu]} hold GPU {gpu} of {node}"
            held[node, gpu] = name


def check_gangs(world: World, gangs: int, size: int) -> None:
    """Every gang runs as a whole, or not at all."""
    nodes = world.nodes_of()
    for gang in range(gangs):
        running = [node for name, node in nodes.items() if name.startswith(f"gang{gang}-") and node]
        assert len(running) in (0, size), f"{len(running)} of gang {gang} run"


def explained(pod: dict[str, Any]) -> bool:
    """Whether a pod that waits has been told why."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("message") for each in conditions)


def load(world: World, gangs: int, size: int, singles: int) -> None:
    for gang in range(gangs):
        world.gang(f"gang{gang}", size)
    for number in range(singles):
        world.pod(f"single-{number}", 1 + number % 4)


def crashes(world: World, kills: int, gangs: int = 2, size: int = 4, singles: int = 24) -> None:
    """In the end every pod is bound, or knows why not, however often the daemon dies on the way."""
    for number in range(MACHINES):
        world.node(f"n{number}", labels={"example.com/rack": f"r{number // 4}"})
    world.ready()
    chance = random.Random(7)
    creating = threading.Thread(target=load, args=(world, gangs, size, singles))
    creating.start()
    for _ in range(kills):
        process = world.start("--gang-grace", "3")
        # From before it has synced to after it has bound some.
        time.sleep(chance.uniform(0.8, 2.5))
        world.kill(process)
        world.free_lease()
        check_gpus(world)
    creating.join()
    world.start("--gang-grace", "3")
    world.wait(lambda: all(pod["spec"].get("nodeName") or explained(pod) for pod in world.pods().values()), 60)
    check_gpus(world)
    check_gangs(world, gangs, size)


def test_killed_again_and_again(world: World) -> None:
    crashes(world, kills=4)


@pytest.mark.slow
def test_killed_forty_times(world: World) -> None:
    crashes(world, kills=40, gangs=4, singles=40)


def test_the_api_server_restarts(world: World) -> None:
    for number in range(4):
        world.node(f"n{number}")
    world.ready()
    world.start()
    world.pod("before", 3)
    world.bound("before")
    creating = threading.Thread(target=load, args=(world, 1, 2, 0))
    creating.start()
    creating.join()
    world.plane.restart("kube-apiserver")
    for number in range(4):
        world.pod(f"after-{number}", 2)
    world.bound()
    check_gpus(world)
    check_gangs(world, 1, 2)


def test_a_second_replica_takes_over_a_dead_one(world: World) -> None:
    world.node("a")
    world.ready()
    first = world.start()
    world.pod("first", 3)
    world.bound("first")
    world.start()
    world.kill(first)
    world.pod("second", 3)
    # The lease runs out first.
    world.bound("second")
    check_gpus(world)
    holder = world.kube.get("coordination.k8s.io/v1", "Lease", LEASE, SYSTEM)["spec"]
    assert holder["leaseTransitions"] == 1
