"""Who gives way to whom, in memory."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.contracts import names
from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.reclaim import Reclaim, make_room
from avactl.scheduler.preemption import preemptor
from tests.fake_clock import FakeClock
from tests.scheduler.memory import Memory

HIGH: dict[str, Any] = {"priority": 10_000}
LOW: dict[str, Any] = {"priority": 100}


def evicted(world: Memory) -> list[str]:
    return sorted(each.pod.name for eviction in world.evictions for each in eviction.victims)


@pytest.fixture
def lent() -> Memory:
    """Two machines: one team is guaranteed both, another one uses them."""
    world = Memory()
    world.quota("owner", 16)
    world.quota("guest", 0)
    return world


def test_a_guarantee_comes_back_from_the_youngest_borrower(lent: Memory) -> None:
    for name in ("old", "young"):
        lent.pod("guest", name, 8)
        lent.settle()
    lent.pod("owner", "mine", 8)
    lent.settle()
    assert evicted(lent) == ["young"]
    assert lent.evictions[0].victims[0].why == "quota-reclaim"
    assert lent.said["mine"].endswith("; 8 more GPUs when pod guest/young ends by quota reclaim")
    # It takes its time; nobody else is asked meanwhile, and nobody takes the place.
    lent.pod("guest", "thief", 8)
    lent.settle()
    assert len(lent.evictions) == 1
    lent.go()
    lent.settle()
    assert set(lent.where()) == {"old", "mine"}
    assert len(lent.evictions) == 1


def test_gpus_of_which_nobody_says_the_model_are_in_no_quota() -> None:
    world = Memory()
    for name in ("n0", "cpu"):
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **({"nvidia.com/gpu": "8"} if name == "n0" else {})}
        world.cache.put_node({"metadata": {"name": name, "labels": {}}, "status": {"allocatable": amounts}})
    world.quota("a", 16)
    for number in range(3):
        world.pod("a", f"p{number}", 8)
    world.pod("a", "light")
    world.pod("other", "free", 8)
    world.settle()
    # A team without a quota takes what is idle.
    assert set(world.where().items()) >= {("p0", "n1"), ("free", "n0")}
    assert "p1" not in world.where()
    assert "light" in world.where()
    assert world.said["p1"] == (
        "fits on none of 3 nodes: 2 are excluded (1 no nvidia.com/gpu, "
        "1 without label avactl.dev/gpu, so not covered by quotas), 1 has fewer than 8 free GPUs (at most 0)"
    )


def test_what_a_quota_never_allows_is_told_at_once() -> None:
    world = Memory()
    world.quota("a", 4, 4)
    world.gang("a", "large", 2, 8)
    world.pod("a", "sure", 8, {"avactl.dev/preemptible": "false"})
    world.settle()
    never = "; it can never start with this quota"
    assert world.said["large-0"].endswith(f"requests 16 V100, uses 0 of 8 (4 guaranteed + 4 borrowed){never}")
    assert world.said["sure"].endswith(never)
    world.pod("a", "small", 4)
    world.settle()
    world.pod("a", "more", 8)
    world.settle()
    assert world.said["more"].endswith("uses 4 of 8 (4 guaranteed + 4 borrowed)")
    # Nor is there anything to wait for where no machines will do.
    world.quota("a", 0, 16)
    world.quota("b", 0, 40)
    world.pod("b", "runs", 4)
    world.settle()
    world.gang("b", "wide", 5, 8)
    world.pod("a", "huge", 13)
    world.gang("a", "waits", 2, 8)
    world.settle()
    small = "; the cluster is too small for it even if it is empty"
    assert world.said["wide-0"].endswith(f"uses 4 of 40 (0 guaranteed + 40 borrowed){small}")
    assert world.said["huge"].endswith(f"uses 12 of 16 (0 guaranteed + 16 borrowed){small}")
    assert world.said["waits-0"].endswith("uses 12 of 16 (0 guaranteed + 16 borrowed)")


def test_a_refusal_names_the_model_of_which_the_team_lacks_least() -> None:
    """Not a model that the team has no quota of: pods without a model may take any."""
    world = Memory(machines=0)
    world.machine("h", 8, {names.GPU_LABEL: "H100"})
    world.machine("v", 8, {})
    world.quota("a", 4, 0)
    world.pod("a", "runs", 3)
    world.pod("a", "more", 3)
    world.pod("a", "huge", 6)
    world.settle()
    assert world.said["more"] == "quota of team a: requests 3 V100, uses 3 of 4"
    assert world.said["huge"].startswith("quota of team a: requests 6 V100, uses 3 of 4; it can never start")


def test_elastic_surplus_goes_first_from_its_last_index_and_does_not_come_back(lent: Memory) -> None:
    lent.gang("guest", "elastic", 3, 4, size=1)
    lent.pod("guest", "young", 4)
    lent.settle()
    assert len(lent.where()) == 4
    lent.pod("owner", "mine", 4)
    lent.settle()
    assert evicted(lent) == ["elastic-2"]
    assert "4 more GPUs when job guest/elastic shrinks by quota reclaim" in lent.said["mine"]
    lent.go()
    # Its Job makes the pod anew at once.
    lent.gang("guest", "elastic", 3, 4, size=1, first=2)
    lent.settle()
    assert set(lent.where()) == {"elastic-0", "elastic-1", "young", "mine"}
    for _ in range(5):
        lent.cache.tables.change_epoch += 1
        lent.settle()
    assert len(lent.evictions) == 1
    lent.drop("owner", "mine")
    lent.settle()
    assert "elastic-2" in lent.where()


@pytest.mark.parametrize(("gpus", "gone"), [(4, [f"crawl-{number}" for number in range(4, 8)]), (8, ["rank"])])
def test_the_example_of_the_docs(lent: Memory, gpus: int, gone: list[str]) -> None:
    lent.gang("guest", "crawl", 8, 1, size=4)
    lent.settle()
    lent.pod("guest", "rank", 8)
    lent.settle()
    lent.pod("owner", "mine", gpus)
    lent.settle()
    assert evicted(lent) == gone


def test_one_pod_takes_one_of_an_elastic_gang(lent: Memory) -> None:
    """However many its gang can do without."""
    lent.gang("guest", "elastic", 16, 1, size=4)
    lent.settle()
    lent.pod("owner", "mine", 1)
    lent.settle()
    assert evicted(lent) == ["elastic-15"]


def test_a_guarantee_comes_back_beside_borrowers_that_nobody_stops() -> None:
    """A plan is not given up because the first borrower that was looked at must stay."""
    world = Memory()
    for team, guaranteed in (("owner", 8), ("sure", 4), ("guest", 4)):
        world.quota(team, guaranteed)
    for number in range(2):
        world.pod("sure", f"sure-{number}", 2, {"avactl.dev/preemptible": "false"})
    for number in range(2):
        world.pod("sure", f"more-{number}", 2)
    for number in range(2):
        world.pod("guest", f"guest-{number}", 4)
    world.settle()
    assert len(world.where()) == 6
    world.gang("owner", "mine", 2, 4)
    world.settle()
    assert evicted(world) == ["guest-1", "more-0", "more-1"]
    world.go()
    world.settle()
    assert {"mine-0", "mine-1", "sure-0", "sure-1", "guest-0"} == world.where().keys()


def test_a_gangs_pod_takes_its_place_again_before_one_that_fills_it() -> None:
    """A machine is drained and comes back: what waits for it is the lost pod of the gang, and a younger small one."""
    world = Memory()
    world.gang("a", "gang", 2, 8)
    world.settle()
    node = world.where()["gang-1"]
    world.drop("a", "gang-1")
    world.machine(node, 8, world.cache.tables.nodes[node].labels, unschedulable=True)
    world.pod("a", "filler", 1)
    world.gang("a", "gang", 2, 8, first=1)
    world.settle()
    assert set(world.where()) == {"gang-0"}
    world.machine(node, 8, world.cache.tables.nodes[node].labels)
    world.settle()
    assert world.where()["gang-1"] == node
    assert "filler" not in world.where()


def test_growth_comes_after_whoever_has_not_started(lent: Memory) -> None:
    lent.gang("guest", "elastic", 4, 4, size=1, **HIGH)
    lent.pod("owner", "mine", 8)
    lent.settle()
    assert {"elastic-0", "elastic-1", "mine"} == set(lent.where())
    assert not lent.evictions


def test_growth_does_not_overtake_those_that_are_to_be_tried_again() -> None:
    world = Memory(1)
    world.pod("a", "first", 8)
    world.settle()
    world.gang("a", "elastic", 4, 2, size=1, **HIGH)
    world.pod("a", "single", 4, **LOW)
    world.settle()
    world.drop("a", "first")
    # Pods of it come, and it is tried with them; what waits is tried again a little later.
    world.drop("a", "elastic-3")
    world.gang("a", "elastic", 4, 2, size=1, first=3, **HIGH)
    world.decide()
    world.settle()
    assert set(world.where()) == {"elastic-0", "elastic-1", "single"}


def test_a_gang_that_is_taken_goes_whole(lent: Memory) -> None:
    lent.gang("guest", "train", 4, 4)
    lent.settle()
    lent.pod("owner", "mine", 4)
    lent.settle()
    assert evicted(lent) == ["train-0", "train-1", "train-2", "train-3"]
    lent.go()
    lent.gang("guest", "train", 4, 4)
    lent.settle()
    assert list(lent.where()) == ["mine"]


def test_what_must_not_be_stopped_is_never_taken() -> None:
    world = Memory()
    world.pod("owner", "sure", 8, {"avactl.dev/preemptible": "false"}, **LOW)
    world.pod("owner", "train", 8, **LOW)
    world.pod("owner", "foreign", 0, schedulerName="other", nodeName="n0", **LOW)
    world.settle()
    world.gang("owner", "mine", 2, 8, **HIGH)
    world.settle()
    assert not world.evictions
    world.pod("owner", "one", 8, **HIGH)
    world.settle()
    assert evicted(world) == ["train"]


def test_priority_counts_inside_of_a_team_and_services_stand_above() -> None:
    world = Memory()
    world.pod("a", "low", 8, **LOW)
    world.pod("b", "theirs", 8, **LOW)
    world.settle()
    world.pod("a", "same", 8, **LOW)
    world.pod("a", "modest", 8, preemptionPolicy="Never", **HIGH)
    world.settle()
    assert not world.evictions
    world.pod("a", "train", 8, **HIGH)
    world.settle()
    assert evicted(world) == ["low"]
    assert world.said["train"].endswith("; 8 more GPUs when pod low ends by priority")
    world.go()
    world.settle()
    world.pod("a", "service", 8, priority=1, priorityClassName="avactl-serving")
    world.settle()
    assert evicted(world) == ["low", "train"]
    world.go()
    world.pod("a", "highest", 8, priority=10**6)
    world.settle()
    assert set(world.where()) == {"service", "theirs"}


def test_a_workspace_ends_only_for_a_guarantee_of_another_team(lent: Memory) -> None:
    session: dict[str, Any] = {"priority": 5000, "priorityClassName": "avactl-workspace"}
    lent.pod("guest", "workspace", 8, **session)
    lent.pod("guest", "may-go", 8, {"avactl.dev/preemptible": "true"}, **session)
    lent.settle()
    lent.pod("guest", "train", 8, **HIGH)
    lent.pod("guest", "service", 8, priority=1, priorityClassName="avactl-serving")
    lent.settle()
    assert evicted(lent) == ["may-go"]
    lent.go()
    lent.settle()
    for name in ("mine", "mine-too"):
        lent.pod("owner", name, 8)
    lent.settle()
    assert {"may-go", "workspace"} < set(evicted(lent))


def test_services_within_their_budget_go_before_those_that_break_it(lent: Memory) -> None:
    for name in ("first", "second", "kept"):
        labels = {"app": "kept" if name == "kept" else "free"}
        lent.pod("guest", name, 4, labels=labels, priorityClassName="avactl-serving")
        lent.settle()
    for app, allowed in (("free", 2), ("kept", 0)):
        lent.budgets.put(
            {
                "metadata": {"namespace": "guest", "name": app},
                "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": allowed},
            }
        )
    lent.pod("owner", "mine", 8)
    lent.settle()
    # `kept` is alone on its machine, and the youngest, but its budget allows nothing.
    assert evicted(lent) == ["first", "second"]


def test_nobody_goes_where_it_would_not_help(lent: Memory) -> None:
    lent.pod("guest", "a", 4)
    lent.pod("guest", "b", 4)
    lent.settle()
    lent.pod("owner", "large", 9)
    lent.pod("owner", "picky", 8, nodeSelector={"rack": "none"})
    lent.gang("owner", "many", 3, 8)
    lent.settle()
    assert not lent.evictions


def test_a_team_beyond_its_guarantee_takes_no_more_than_its_share() -> None:
    world = Memory()
    world.quota("a", 0)
    world.quota("b", 0)
    for number in range(4):
        world.pod("a", f"a{number}", 4)
        world.settle()
    for number in range(3):
        world.pod("b", f"b{number}", 4)
        world.settle()
    world.go()
    world.settle()
    assert sorted(world.where()) == ["a0", "a1", "b0", "b1"]
    for _ in range(3):
        world.cache.tables.change_epoch += 1
        world.settle()
    assert len(world.evictions) == 2


def test_two_that_are_due_get_what_is_theirs_and_no_more_is_taken(lent: Memory) -> None:
    for number in range(4):
        lent.pod("guest", f"g{number}", 4)
        lent.settle()
    for number in range(2):
        lent.pod("owner", f"o{number}", 4)
    lent.settle()
    assert len(evicted(lent)) == 2
    lent.go()
    lent.settle()
    assert {"o0", "o1"} <= set(lent.where())
    assert len(lent.where()) == 4


def test_a_reservation_ends_with_its_pod(lent: Memory) -> None:
    lent.pod("guest", "a", 8)
    lent.pod("guest", "b", 8)
    lent.settle()
    lent.pod("owner", "mine", 8)
    lent.settle()
    lent.drop("owner", "mine")
    lent.go()
    lent.pod("guest", "next", 8)
    lent.settle()
    assert "next" in lent.where()
    assert not [key for key in lent.cache.tables.state.bookings if isinstance(key, tuple)]


def test_victims_that_do_not_go_are_not_waited_for_for_ever(lent: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    lent.pod("guest", "stuck", 8)
    lent.pod("guest", "other", 8)
    lent.settle()
    lent.pod("owner", "mine", 8)
    lent.settle()
    stuck = lent.items[lent.evictions[0].victims[0].pod.key]
    now = time.time()
    ends = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stuck["metadata"]["deletionTimestamp"] = ends
    lent.pod_handler.put(stuck)
    lent.settle()
    assert len(lent.evictions) == 1
    clock = FakeClock(time.monotonic() + 200).set_in(monkeypatch, preemptor)
    monkeypatch.setattr(time, "time", lambda: now + 200)
    lent.settle()
    assert not [key for key in lent.cache.tables.state.bookings if isinstance(key, tuple)]
    clock.advance(100)
    lent.cache.tables.change_epoch += 1
    lent.settle()
    # Its machine is lost, perhaps: another one is asked.
    assert len(evicted(lent)) == len(set(evicted(lent))) == 2


def test_over_the_limit_a_team_makes_room_among_its_own() -> None:
    world = Memory()
    world.quota("a", 8, 0)
    world.pod("a", "low", 8, **LOW)
    world.settle()
    world.pod("a", "high", 4, **HIGH)
    world.settle()
    assert evicted(world) == ["low"]
    assert world.said["high"].startswith("quota of team a: requests 4 V100, uses 8 of 8; 8 more GPUs when")
    world.go()
    world.settle()
    assert list(world.where()) == ["high"]


def test_a_team_that_only_its_limit_stops_makes_room_though_another_machine_is_free() -> None:
    world = Memory(machines=3)
    world.quota("vision", 4, 0)
    world.quota("ads", 24)
    for number in range(2):
        here = {"nodeSelector": {"kubernetes.io/hostname": f"n{number}"}}
        world.pod("ads", f"ads-{number}", 6, **here)
        world.pod("vision", f"low-{number}", 2, **here, **LOW)
    world.settle()
    assert sorted(world.where().values()) == ["n0", "n0", "n1", "n1"]
    world.pod("vision", "high", 4, **HIGH)
    world.settle()
    assert evicted(world) == ["low-0", "low-1"]
    world.go()
    world.settle()
    assert world.where()["high"] == "n2"


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_bound_on_what_evictions_free_changes_no_plan(seed: int) -> None:
    """Whether the quota of a team, capacity, or both stand in the way."""
    rng = random.Random(seed)
    world = Memory(machines=3)
    world.quota("a", rng.randrange(2, 13), rng.choice([0, 2, None]))
    world.quota("b", rng.randrange(8, 25), rng.choice([0, 8, None]))

    def make_both(*args: Any, **given: Any) -> list[Reclaim] | None:
        plan = make_room(*args, **given)
        assert plan == make_room(*args, **{**given, "hopeful": None})
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemptor, "make_room", make_both)
        for number in range(rng.randrange(4, 14)):
            here = {"kubernetes.io/hostname": f"n{rng.randrange(3)}"} if rng.random() < 0.5 else {}
            gpus, priority = rng.choice([0, 1, 2, 4, 6]), rng.randrange(3)
            world.pod(rng.choice("ab"), f"p{number}", gpus, nodeSelector=here, priority=priority)
            world.settle()
            if rng.random() < 0.7:
                world.go()
                world.settle()


def test_what_ends_by_itself_is_waited_for(lent: Memory) -> None:
    lent.pod("guest", "ends", 8)
    lent.pod("guest", "stays", 8)
    lent.settle()
    item = lent.items["guest/ends"]
    item["metadata"]["deletionTimestamp"] = "2099-01-01T00:00:00Z"
    lent.pod_handler.put(item)
    lent.pod("owner", "mine", 8)
    lent.settle()
    assert not lent.evictions
    assert lent.said["mine"].endswith("enough capacity will be free once terminating pods have ended")
    lent.drop("guest", "ends")
    lent.settle()
    assert "mine" in lent.where()


def test_ranks_that_keep_apart_are_neighbours_by_rack() -> None:
    world = Memory(machines=6, rack=3)
    for number in (1, 4):  # the fullest machines are chosen first
        world.pod("a", f"small-{number}", nodeSelector={"kubernetes.io/hostname": f"n{number}"})
    world.settle()
    mine = {"labelSelector": {"matchLabels": {names.GANG_LABEL: "ring"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [mine]}}
    world.gang("a", "ring", 6, 8, affinity=apart)
    world.settle()
    where = world.where()
    racks = [int(where[f"ring-{rank}"][1:]) // 3 for rank in range(6)]
    assert racks in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_members_that_must_be_in_one_domain() -> None:
    world = Memory(machines=4, rack=2)
    world.pod("a", "n0", 8, nodeSelector={"kubernetes.io/hostname": "n0"})
    world.pod("a", "n2", 8, nodeSelector={"kubernetes.io/hostname": "n2"})
    world.settle()
    within = {"avactl.dev/within": "example.com/rack"}
    world.gang("a", "near", 2, 8, notes=within)
    world.settle()
    assert world.said["near-0"].startswith(
        "needs 2 machines with 8 free GPUs in one rack; rack b/r0 has 1, rack b/r1 has 1"
    )
    # The same by pods that others have a say about, which are placed one by one.
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"avactl.dev/gang": "apart"}},
                }
            ]
        }
    }
    world.gang("a", "apart", 2, 8, notes=within, affinity=apart)
    world.settle()
    assert "apart-0" not in world.where()
    assert world.said["apart-0"].startswith("all pods need one rack: 1 of 2 fit")
    world.drop("a", "n2")
    world.settle()
    assert {world.where()["near-0"], world.where()["near-1"]} == {"n2", "n3"}
    world.gang("a", "odd", 2, 8, notes={"avactl.dev/within": "rack"})
    world.settle()
    assert "`rack` is not a level of the cluster (example.com/block, example.com/rack)" in world.said["odd-0"]


def spread(rng: random.Random, world: Memory) -> None:
    for team, guaranteed, borrow in (("a", 8, None), ("b", 8, 8), ("c", 8, 4)):
        world.quota(team, guaranteed, borrow)
    for number in range(rng.randrange(4, 14)):
        team, priority = rng.choice("abcd"), rng.randrange(3)
        notes = {"avactl.dev/preemptible": "false"} if rng.random() < 0.15 else {}
        serving: dict[str, Any] = {"priorityClassName": "avactl-serving"} if rng.random() < 0.15 else {}
        if rng.random() < 0.5:
            world.pod(team, f"p{number}", rng.choice([1, 2, 4, 8]), notes, priority=priority, **serving)
        else:
            members = rng.randrange(1, 4)
            size = rng.randrange(1, members + 1)
            world.gang(team, f"g{number}", members, rng.choice([2, 4, 8]), size, notes=notes, priority=priority)
        world.settle()
        # What was evicted meanwhile goes, and is not made anew.
        while world.go():
            world.settle()


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_plan_that_is_carried_out_lets_the_unit_start(seed: int) -> None:
    """And takes nobody whom it could spare, nor cuts into what somebody is guaranteed, nor what must run."""
    rng = random.Random(seed)
    world = Memory(machines=3)
    spread(rng, world)
    known = len(world.evictions)
    team, gpus = rng.choice("abc"), rng.choice([2, 4, 8])
    world.gang(team, "mine", rng.randrange(1, 3), gpus, priority=rng.randrange(3))
    before = world.where()
    used = {name: world.cache.quotas.current_ledger().used(name, "V100") for name in "abcd"}
    world.settle()
    mine = [name for name in world.items if "/mine-" in name]
    mine_too = [each for each in world.evictions[known:] if any("mine" in pod.name for pod in each.places)]
    if not mine_too:
        return
    (eviction,) = mine_too
    for victim in eviction.victims:
        giver = world.cache.quotas.team(victim.pod)
        if giver != team:
            assert used[giver] > world.cache.quotas.current_ledger().limit(giver, "V100").guaranteed
        gang = [name for name in before if victim.pod.gang and name.startswith(f"{victim.pod.gang.split('/')[1]}-")]
        going = [each.pod.name for each in eviction.victims if each.pod.gang == victim.pod.gang]
        left = len(gang) - len(going)
        assert not victim.pod.gang or left == 0 or left >= victim.pod.gang_size
        if not victim.pod.preemptible:
            assert left >= victim.pod.gang_size
    world.go()
    world.settle()
    assert all(f"{team}/{name}" not in mine or name in world.where() for name in [n.split("/")[1] for n in mine])
    # Once is enough; and only who ranks above it in its team may then take it for more than it was given.
    others = [each for each in world.evictions[known:] if each is not eviction]
    assert not any("mine" in pod.name for each in others for pod in each.places)
    assert all(each.why == "priority" for more in others for each in more.victims if "mine" in each.pod.name)
    total = 3 * 8 * MILLI_PER_GPU
    assert sum(world.cache.quotas.current_ledger().used(name, "V100") for name in "abcd") <= total


def test_what_came_free_for_one_is_not_kept_for_another_whose_room_is_still_to_come() -> None:
    world = Memory(machines=0)
    amounts = {"cpu": "2", "memory": "64Gi", "pods": "30", "nvidia.com/gpu": "8"}
    world.cache.put_node(
        {"metadata": {"name": "n0", "labels": {names.GPU_LABEL: "V100"}}, "status": {"allocatable": amounts}}
    )
    world.pod("a", "low-1", 1, priority=-5)
    world.pod("a", "low-2", 1, priority=-5)
    world.settle()
    world.pod("a", "high-1", 1, priority=5)
    world.settle()
    world.pod("a", "high-2", 1, priority=5)
    world.settle()
    first, second = (eviction.victims[0].pod for eviction in world.evictions)
    world.drop("a", first.name)
    world.settle()
    assert set(world.where()) == {second.name, "high-1"}
    world.drop("a", second.name)
    world.settle()
    assert set(world.where()) == {"high-1", "high-2"}
    assert len(world.evictions) == 2
