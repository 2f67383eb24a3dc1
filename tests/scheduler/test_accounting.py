"""Who holds what, in whatever order the API server tells of it, and whatever becomes of the machine meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts.scheduling import GpuLimit, TeamLeaf
from avactl.hardware.placement.allocation import Booking
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.config import TeamQuota
from tests.scheduler.memory import Memory
from tests.scheduler.offline import cache, node, pod
from tests.scheduler.test_claims import GPU, Claiming, request


def free(made: ClusterCache) -> list[int]:
    """The GPUs that are wholly free on the one machine."""
    if made.tables.stale:
        made.rebuild()
    return [gpu for gpu in range(16) if int(made.tables.state.whole[made.tables.state.slots["a"]]) >> gpu & 1]


@pytest.mark.parametrize(("left", "then"), [(0, 0), (2, 0), (4, 0), (6, 2)])
def test_gpus_go_and_come_back_under_a_pod(left: int, then: int) -> None:
    # As when the device plugin starts anew, or one GPU fails.
    made = cache([node("a")], [pod("p", 4, "a", "4,5,6,7")])
    for _ in range(2):
        made.put_node(node("a", left))
        assert len(free(made)) == then
        made.put_node(node("a"))
        assert free(made) == [0, 1, 2, 3]
    assert len(free(cache([node("a", left)], [pod("p", 4, "a", "4,5,6,7")]))) == then


def test_a_pod_whose_gpus_are_gone_is_not_booked_with_those_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    pods = [pod("gone", 1, "a", "7"), pod("half", 2, "a", "5,6"), pod("p", 5, "a", "0,1,2,3,4")]
    assert not free(cache([node("a", 6)], pods))
    assert "held twice" not in capsys.readouterr().err


def test_gpus_that_are_known_come_before_those_that_are_not() -> None:
    # The first was bound by another scheduler.
    made = cache([node("a")], [pod("other", 2, "a"), pod("p", 2, "a", "0,1")])
    made.drop_node("a")
    made.put_node(node("a"))
    assert len(free(made)) == 4
    assert not set(free(made)) & {0, 1}


def test_of_gpus_that_two_pods_have_the_others_are_not_free() -> None:
    made = cache([node("a")], [pod("p", 4, "a", "0,1,2,3")])
    made.put_pod(pod("q", 4, "a", "3,4,5,6"))
    assert not free(made)
    made.drop_pod("vision/p")
    assert free(made) == [0, 1, 2, 7]


def test_pods_of_a_machine_with_too_few_gpus_get_those_that_come_free() -> None:
    """Another scheduler may bind more than there is, and none of its pods names GPUs."""
    made = cache([node("a")], [pod(name, 4, "a") for name in ("p", "q", "r")])
    assert not free(made)
    made.drop_pod("vision/p")
    assert not free(made)
    made.drop_pod("vision/q")
    assert len(free(made)) == 4


def test_what_is_kept_for_others_gives_way_to_a_pod_that_another_scheduler_binds() -> None:
    made = cache([node("a")], [])
    slot, nothing = made.tables.state.slots["a"], (0,) * len(made.tables.state.resources)
    for gpu in range(6):
        made.tables.state.book(("hold", "unit", gpu), Booking(slot, nothing, 1 << gpu))
    made.put_pod(pod("other", 4, "a"))
    assert len(free(made)) == 4


def used(made: ClusterCache) -> float:
    return made.quotas.current_ledger().used("a", "V100") / 1000


def test_pods_that_are_known_before_their_machine_count_for_the_quota() -> None:
    limit = GpuLimit(gpu="A100", guaranteed=4, borrow=0, weight=1)
    leaf = TeamLeaf(team="vision", namespaces=("vision",), gpus=(limit,), shapes=())
    made = cache([], [])
    made.quotas.put_quota("vision", TeamQuota.from_leaf(leaf))
    made.quotas.current_ledger()
    made.put_pod(pod("p", 4, "a", "0,1,2,3"))
    made.put_node(node("a"))
    if made.tables.stale:
        made.rebuild()
    assert made.quotas.current_ledger().used("vision", "A100") == 4000
    unnamed = node("a")
    del unnamed["metadata"]["labels"]["avactl.dev/gpu"], unnamed["metadata"]["labels"]["avactl.dev/pool"]
    made.put_node(unnamed)
    assert made.quotas.current_ledger().used("vision", "A100") == 0


def test_pods_that_are_known_before_the_team_of_their_namespace_count_for_its_quota() -> None:
    made = cache([node("a")], [pod("p", 3, "a")])
    leaf = TeamLeaf(team="big", namespaces=(), gpus=(), shapes=())
    made.quotas.put_quota("big", TeamQuota.from_leaf(leaf))
    assert made.quotas.current_ledger().used("big", "A100") == 0
    made.tables.put_namespace("vision", {"avactl.dev/team": "big"})
    assert made.quotas.current_ledger().used("big", "A100") == 3000


def allocated(world: Claiming, version: int, *users: str) -> dict[str, Any]:
    """Claim `c` with two GPUs, for these pods."""
    results = [{"request": "gpus", "driver": GPU, "pool": "n0", "device": f"d{number}"} for number in range(2)]
    uids = {name: world.items[f"a/{name}"]["metadata"]["uid"] for name in users}
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in uids.items()]
    return {
        "metadata": {"name": "c", "namespace": "a", "uid": "c", "resourceVersion": str(version)},
        "spec": {"devices": {"requests": [request("gpus", 2)]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


def test_a_claim_that_pods_share_counts_once_as_long_as_one_of_them_is_there() -> None:
    world = Claiming()
    world.quota("a", 2, 0)
    world.claim("c", request("gpus", 2))
    world.asking("p", "c")
    world.asking("q", "c")
    world.settle()
    assert set(world.where()) == {"p", "q"}
    assert used(world.cache) == 2
    world.cache.claims.put(allocated(world, 2, "p", "q"))
    world.drop("a", "p")
    assert used(world.cache) == 2
    world.cache.claims.put(allocated(world, 3, "q"))
    world.drop("a", "q")
    assert used(world.cache) == 0


def test_pods_that_are_known_before_their_claims_count_for_the_quota() -> None:
    world = Claiming()
    world.quota("a", 2, 0)
    world.settle()
    assert used(world.cache) == 0
    world.claim("c", request("gpus", 2))
    world.asking("p", "c", nodeName="n0")
    world.cache.claims.put(allocated(world, 2, "p"))
    assert used(world.cache) == 2
    world.cache.claims.drop("a/c")
    assert used(world.cache) == 0


def test_devices_of_claims_on_a_machine_that_comes_back_are_not_free() -> None:
    world = Claiming(2)
    world.claim("c", request("gpus", 2))
    world.asking("p", "c")
    world.settle()
    state, name = world.cache.tables.state, world.where()["p"]
    bookings, whole = dict(state.bookings), state.whole[state.slots[name]]
    labels = world.cache.tables.nodes[name].labels
    world.cache.drop_node(name)
    assert "c" not in state.bookings
    world.machine(name, 0, labels)
    assert not world.cache.tables.stale
    assert world.cache.tables.state is state
    assert state.bookings == bookings
    assert state.whole[state.slots[name]] == whole


def test_devices_of_a_driver_that_starts_anew_count_for_the_quota() -> None:
    world = Claiming(2)
    world.quota("a", 2, 0)
    for name in ("c", "d"):
        world.claim(name, request("gpus", 2))
    world.asking("p", "c")
    world.settle()
    world.cache.tables.stale |= world.cache.dra.drop_slice(f"{GPU}-{world.where()['p']}")
    world.asking("q", "d")
    world.settle()
    assert set(world.where()) == {"p"}
    assert "requests 2 V100, uses 2" in world.said["q"]


def test_another_scheduler_counts_victims_that_keep_a_pod_away_once() -> None:
    world = Memory(machines=1)
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.pod("vision", "low", 8, labels={"app": "x"})
    world.settle()
    world.pod("vision", "high", 8, affinity=away, priority=100)
    world.settle()
    other = world.restart()
    other.settle()
    other.drop("vision", "low")
    other.settle()
    assert list(other.where()) == ["high"]
