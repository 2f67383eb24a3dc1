"""A statement changes the cache for as long as it lasts; what is rolled back leaves no trace."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from avactl.hardware.placement.allocation import Booking, BookingError
from avactl.hardware.placement.masks import Mask
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.constraints.pod_topology import PodTopology
from avactl.scheduler.objects.pod_info import PodInfo
from tests.scheduler.memory import LEVELS, Memory

APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": LEVELS[1]}
        ]
    }
}


def cluster() -> Memory:
    """Return a cluster of four machines in two racks with three pods that keep others away, and pods that wait."""
    world = Memory(machines=4)
    world.quota("vision", guaranteed=32)
    for number in range(3):
        ports = [{"name": "a", "ports": [{"hostPort": 8000 + number, "containerPort": 80}]}]
        world.pod("vision", f"runs-{number}", 4, containers=[{**_container(4), **ports[0]}])
    world.pod("vision", "alone", 4, labels={"app": "x"}, affinity=APART)
    world.settle()
    world.pod("vision", "late", 4, labels={"app": "x"}, affinity=APART)
    for number in range(4):
        world.pod("vision", f"waits-{number}", 2)
    return world


def _container(gpus: int) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}}}


def picture(world: Memory) -> object:
    """Return what decisions read: bookings, free resources, pods, quotas, and nodes that topology leaves."""
    tables, late = world.cache.tables, world.cache.tables.pods["vision/late"]
    state = tables.state
    return (
        dict(state.bookings),
        state.free.tolist(),
        state.gpu_free.tolist(),
        state.gpu_total.tolist(),
        {node: sorted(pods) for node, pods in tables.pods_by_node.items()},
        tables.change_epoch,
        [(pod.key, pod.assumed, pod.devices) for pod in tables.pods.values()],
        list(world.cache.quotas.usage()),
        feasible(world, late).tolist(),
    )


def feasible(world: Memory, pod: PodInfo) -> Mask:
    mask = world.constraints.get(PodTopology).filter_nodes(pod).mask
    assert mask is not None
    return mask


def pods(world: Memory, prefix: str) -> list[PodInfo]:
    return [pod for pod in world.cache.tables.pods.values() if pod.name.startswith(prefix)]


def booking(world: Memory, pod: PodInfo) -> Booking | None:
    request = world.cache.requests.request(pod.shape)
    assert not isinstance(request, str)
    choice = world.cache.choose(pod, request, None)
    return None if choice is None else choice.booking(request)


def test_a_rollback_leaves_no_trace() -> None:
    random_, world = random.Random(3), cluster()
    before = picture(world)
    changed = 0
    for _ in range(40):
        with Statement(world.cache) as statement:
            for _ in range(random_.randrange(1, 5)):
                running = [*pods(world, "runs"), *pods(world, "alone")]
                statement.evict_only(random_.sample(running, random_.randrange(len(running) + 1)))
            with Statement(world.cache) as inner:
                for pod in random_.sample(pods(world, "waits"), 2):
                    found = booking(world, pod)
                    assert found is not None
                    inner.allocate(pod, found)
                if random_.random() < 0.5:
                    inner.reserve(pods(world, "late")[0], "n0", Booking(0, (1, 0, 0, 0)))
                changed += picture(world) != before
        assert picture(world) == before
    assert changed == 40


def test_an_evicted_pod_no_longer_keeps_others_away() -> None:
    world = cluster()
    late, alone = pods(world, "late")[0], pods(world, "alone")
    left = feasible(world, late).sum()
    with Statement(world.cache) as statement:
        statement.evict_only(alone)
        assert feasible(world, late).sum() == left + 2
        statement.evict_only([])
        assert feasible(world, late).sum() == left
    with Statement(world.cache, topology=False) as statement:
        statement.evict_only(alone)
        assert feasible(world, late).sum() == left


def test_a_commit_stands_and_an_error_undoes_what_came_before_it() -> None:
    world = cluster()
    first, second = pods(world, "waits")[:2]
    place = booking(world, first)
    assert place is not None
    before = picture(world)
    with suppress(BookingError), Statement(world.cache) as statement:
        statement.allocate(first, place)
        assert first.assumed
        statement.allocate(second, place)  # the same GPUs
        raise AssertionError("GPUs were allocated twice")
    assert picture(world) == before
    with Statement(world.cache) as statement:
        statement.allocate(first, place)
        statement.commit()
    assert first.assumed == world.cache.tables.state.names[place.node]
    assert world.cache.tables.state.bookings[first.uid] == place
    assert not second.assumed
