"""Gangs on a real API server: whole, or not at all."""

from __future__ import annotations

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


def racks(world: World, count: int, size: int) -> None:
    for number in range(count * size):
        world.node(f"n{number}", labels={"example.com/rack": f"r{number // size}"})
    world.ready()


def test_a_gang_waits_until_all_fit_and_is_bound_into_one_rack(world: World) -> None:
    racks(world, 2, 2)
    world.start()
    world.pod("blocker", 1, nodeSelector={"kubernetes.io/hostname": "n0"})
    world.bound("blocker")
    world.gang("train", 3, size=4)
    assert world.waiting("train-0") == "waits for the other pods of its gang: 3 of 4 exist"
    world.gang("train", 4, first=3)
    assert world.waiting("train-0", "needs", 40).startswith("needs 4 machines with 8 free GPUs; only 3 available")
    assert not any(node for name, node in world.nodes_of().items() if name.startswith("train"))
    world.kube.delete("v1", "Pod", "blocker", world.namespace)
    world.bound()
    for number in range(4):
        world.kube.delete("v1", "Pod", f"train-{number}", world.namespace)
    world.wait(lambda: not world.pods())
    world.gang("pair", 2)
    assert len({int(node[1:]) // 2 for node in world.bound().values()}) == 1


def test_an_elastic_gang_starts_with_what_it_needs(world: World) -> None:
    racks(world, 1, 2)
    world.start()
    world.gang("train", 3, size=2)
    world.wait(lambda: len([node for node in world.nodes_of().values() if node]) == 2)
    assert world.waiting("train-2").startswith("the gang is running; additional pod: fits on none of 2 nodes")
    world.node("n2")
    world.bound()


def test_a_gang_that_a_crash_left_in_part_is_finished(world: World) -> None:
    racks(world, 1, 3)
    world.gang("train", 3)
    world.bind("train-1", "n0", "0,1,2,3,4,5,6,7")
    world.start()
    assert sorted(world.bound().values()) == ["n0", "n1", "n2"]


def test_a_partial_gang_that_cannot_be_finished_gives_its_gpus_back(world: World) -> None:
    racks(world, 1, 2)
    world.gang("train", 3)
    world.bind("train-0", "n0", "0,1,2,3,4,5,6,7")
    world.start("--gang-grace", "1")
    world.wait(lambda: "train-0" not in world.pods())
    assert not any(world.nodes_of().values())
    world.wait(lambda: world.events("PartialGang"))
    world.pod("other", 8)
    world.pod("another", 8)
    world.bound("other", "another")
