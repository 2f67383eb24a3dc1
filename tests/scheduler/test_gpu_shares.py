"""Parts of GPUs: pods of a gang share a GPU, and nothing is handed out twice."""

from __future__ import annotations

from collections import Counter

from avactl.contracts.pod_annotations import DEVICES, GPU_SHARE
from tests.scheduler.memory import Memory

HALF = {GPU_SHARE.name: "0.5"}


def held(world: Memory) -> Counter[tuple[str, str]]:
    """Pods on each GPU."""
    return Counter(
        (item["spec"]["nodeName"], item["metadata"]["annotations"][DEVICES.name])
        for item in world.items.values()
        if "nodeName" in item["spec"]
    )


def test_two_workers_of_a_job_share_a_gpu() -> None:
    world = Memory(1, gpus=1)
    world.gang("vision", "ps", 2, 0, notes=HALF)
    world.gang("vision", "more", 2, 0, notes=HALF)
    world.settle()
    assert held(world) == {("n0", "0"): 2}
    world.drop("vision", *list(world.where()))
    world.settle()
    assert held(world) == {("n0", "0"): 2}


def test_a_gang_of_parts_leaves_whole_gpus_to_others() -> None:
    world = Memory(1, gpus=4)
    world.gang("vision", "ps", 4, 0, notes=HALF)
    world.settle()
    assert sorted(held(world).values()) == [2, 2]
    world.pod("vision", "whole", 2)
    world.settle()
    assert "whole" in world.where()


def test_parts_and_whole_gpus_in_one_gang() -> None:
    world = Memory(1, gpus=2)
    world.gang("vision", "mixed", 2, 0, size=3, notes=HALF)
    world.pod("vision", "leader", 1, {"avactl.dev/gang-size": "3"}, {"avactl.dev/gang": "mixed"})
    world.settle()
    assert len(world.where()) == 3
    assert sorted(held(world).values()) == [1, 2]


def test_parts_count_in_the_quota() -> None:
    world = Memory(1, gpus=4)
    world.quota("vision", 1, 0)
    for number in range(3):
        world.pod("vision", f"half-{number}", 0, HALF)
    world.settle()
    assert len(world.where()) == 2
    assert "requests 0.5 V100, uses 1 of 1" in world.said["half-2"]


def test_parts_that_do_not_add_up_to_a_gpu() -> None:
    world = Memory(1, gpus=2)
    world.gang("vision", "large", 3, 0, notes={GPU_SHARE.name: "0.75"})
    world.settle()
    assert not world.where()
    world.gang("vision", "fits", 2, 0, notes={GPU_SHARE.name: "0.75"})
    world.settle()
    assert sorted(held(world).values()) == [1, 1]
