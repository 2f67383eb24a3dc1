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


def test_groups_of_a_leader_worker_set_are_gangs_of_their_own(world: World) -> None:
    """Their pods have one template: the controller's label tells the groups apart, and the annotation their size."""
    racks(world, 1, 3)
    world.start()
    name, key = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-key"
    # The leaders come first: those of both groups would fit, and the other pods of one.
    for pod, group in (("chat-0", "a"), ("chat-1", "b"), ("chat-0-1", "a"), ("chat-1-1", "b")):
        world.pod(pod, 8, labels={name: "chat", key: group}, notes={"avactl.dev/gang-size": "2"})
    world.wait(lambda: sum(1 for node in world.nodes_of().values() if node) == 2)
    placed = {pod for pod, node in world.nodes_of().items() if node}
    assert placed in ({"chat-0", "chat-0-1"}, {"chat-1", "chat-1-1"})
    other = sorted(world.nodes_of().keys() - placed)
    assert world.waiting(other[0], "needs").startswith("needs 2 machines with 8 free GPUs; only 1 available")
    world.node("n3")
    assert len(set(world.bound().values())) == 4


def test_groups_without_a_size_are_no_gangs(world: World) -> None:
    """A controller with `startupPolicy: LeaderReady` creates the others once the leader runs."""
    racks(world, 1, 1)
    world.start()
    world.pod("chat-0", 8, labels={"leaderworkerset.sigs.k8s.io/group-key": "a"})
    world.bound("chat-0")


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
