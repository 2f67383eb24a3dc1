"""Hostile pods, claims, ConfigMaps and nodes on a real API server: honest pods beside them are scheduled as ever."""

from __future__ import annotations

import random

import pytest

from benchmarks.hostile_objects import Hostile
from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


def _attack(world: World, honest: int, each: int, seed: int) -> None:
    """Schedule honest pods one by one, after `each` hostile objects every time."""
    for number in range(8):
        world.node(f"n{number}")
    world.ready()
    process = world.start()
    hostile = Hostile(world.kube, f"{world.namespace}-hostile", random.Random(seed))
    for number in range(honest):
        hostile.make(each)
        name = f"honest-{number}"
        world.pod(name, number % 2)
        world.bound(name)
        path = f"/api/v1/namespaces/{world.namespace}/pods/{name}"
        world.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
    assert process.poll() is None, "the daemon has ended"
    assert world.defects() == []
    assert hostile.made > honest * each / 2, hostile.refused
    hostile.clean()


def test_the_reproduced_attacks_end_nothing(world: World) -> None:
    """Each of them stopped the scheduling of all before."""
    world.node("a")
    world.node("b")
    world.ready()
    world.pod("claims-all", 1, notes={"avactl.dev/devices": "0,1,2,3,4,5,6,7"})
    world.bind("claims-all", "a")
    world.pod("long", 1, notes={"avactl.dev/devices": "9" * 5000})
    world.bind("long", "a")
    index = {"batch.kubernetes.io/job-completion-index": "7" * 5000, "avactl.dev/gang-size": "1"}
    world.pod("indexed", 2, labels={"avactl.dev/gang": "g"}, notes=index)
    world.bind("indexed", "a")
    process = world.start()
    world.pod("share", notes={"avactl.dev/gpu-share": "1e-99999999"})
    assert "is not a share of one GPU" in world.waiting("share")
    terms = [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v" * 60]}]} for _ in range(8000)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    world.pod("affine", affinity={"nodeAffinity": required})
    assert "at most 64 are read" in world.waiting("affine")
    # Four are free on a: one, one and two are held, whatever their pods say.
    world.pod("six", 6)
    assert world.bound("six")["six"] == "b"
    world.pod("four", 4)
    assert world.bound("four")["four"] == "a"
    assert process.poll() is None
    assert world.defects() == []


def test_honest_pods_are_scheduled_beside_hostile_ones(world: World) -> None:
    _attack(world, 10, 8, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_honest_pods_are_scheduled_beside_many_hostile_ones(world: World, seed: int) -> None:
    _attack(world, 100, 25, seed)
