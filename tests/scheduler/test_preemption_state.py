"""State that preemption keeps up to date: equal to what is built anew, however pods come, change and go."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import Booking
from avactl.hardware.placement.quota import Ledger
from avactl.scheduler.cache import change_journal
from avactl.scheduler.cache.change_journal import ChangeJournal
from avactl.scheduler.cache.team_usage import TeamUsage
from avactl.scheduler.preemption import preemptor
from avactl.scheduler.preemption.candidates import Candidates
from avactl.scheduler.preemption.preemptor import Preemptor
from avactl.scheduler.preemption.reservations import NominatedPlace, Reservations
from tests.fake_clock import FakeClock
from tests.scheduler.memory import Memory

TEAMS = "abc"


def change_something(rng: random.Random, world: Memory, number: int) -> None:
    """Add, change or remove pods or budgets, as watches would."""
    team, priority = rng.choice(TEAMS), rng.randrange(number + 1)
    kind = rng.randrange(30)
    if kind < 4:
        serving: dict[str, Any] = {"priorityClassName": "avactl-serving"} if rng.random() < 0.05 else {}
        world.pod(team, f"p{number}", rng.choice([1, 2, 4, 8]), priority=priority, **serving)
    elif kind < 7:
        members = rng.randrange(1, 5)
        size = rng.randrange(1, members + 1)
        world.gang(team, f"g{rng.randrange(6)}", members, rng.choice([1, 2, 4]), size, priority=priority)
    elif kind == 7:
        world.go()
    elif world.items and kind < 10:
        namespace, name = rng.choice(list(world.items)).split("/")
        world.drop(namespace, name)
    elif world.items and kind == 10:
        item = world.items[rng.choice(list(world.items))]
        item["metadata"]["deletionTimestamp"] = "2099-01-01T00:00:00Z"
        world.pod_handler.put(item)
    else:
        app = {"metadata": {"namespace": team, "name": "all"}, "spec": {"selector": {}}}
        world.budgets.put({**app, "status": {"disruptionsAllowed": rng.randrange(2)}})


def content(candidates: Candidates) -> object:
    """What matters of candidates, regardless of the order in which workloads are listed."""
    ledger: Ledger = candidates.ledger
    order = {team: ledger.victims(team) for team in TEAMS}
    usage = {(team, model): ledger.used(team, model) for team in TEAMS for model in ("", "V100")}
    return ledger.works, order, usage, ledger.total, candidates.pods


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_candidates_are_those_of_a_new_search(seed: int, shared: bool) -> None:
    rng = random.Random(seed)
    world = Memory(machines=4)
    for team in TEAMS if shared else "":
        world.quota(team, 8)
    mine: Preemptor = world.cycle.preemptor
    for number in range(30):
        change_something(rng, world, number)
        if rng.random() < 0.5:
            world.settle()
        ending = mine._ending_pods()
        for team, model in (("a", "V100"), ("b", "")):
            kept = mine._collect_candidates(team, model, ending)
            anew = Candidates(world.cache, world.queue, world.budgets, team, model)
            anew.update(ending)
            assert content(kept) == content(anew)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
@example(19800303)  # a pod is deleted on a node with a reserved place
def test_reservations_are_those_of_a_full_renewal(seed: int) -> None:
    rng = random.Random(seed)
    world = Memory(machines=4)
    for team in TEAMS:
        world.quota(team, 8)
    mine: Preemptor = world.cycle.preemptor
    for number in range(30):
        change_something(rng, world, number)
        if rng.random() < 0.5:
            world.settle()
        mine._renew_reservations()
        bookings, usage = dict(world.cache.tables.state.bookings), world.cache.quotas.nominated_works
        mine._renew_reservations(all_of_them=True)
        assert world.cache.tables.state.bookings == bookings
        assert world.cache.quotas.nominated_works == usage


def test_candidates_that_are_not_used_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock().set_in(monkeypatch, preemptor)
    monkeypatch.setattr(preemptor, "MAX_CANDIDATE_PODS", 9)
    world = Memory(machines=1)
    for number, team in enumerate("aaabbcc"):
        world.pod(team, f"p{number}", 1)
    world.settle()
    mine: Preemptor = world.cycle.preemptor
    for team in "abcb":
        clock.advance(20)
        assert mine._collect_candidates(team, "", set()).pod_count == {"a": 3, "b": 2, "c": 2}[team]
    assert [team for team, _ in mine._candidates] == ["a", "c", "b"]
    world.pod("b", "more", 1)
    world.gang("b", "gang", 2, 0)
    world.settle()
    mine._collect_candidates("b", "", set())
    # One workload more, and a gang of two, are too many pods: those used least recently are dropped.
    assert [team for team, _ in mine._candidates] == ["c", "b"]
    clock.advance(45)
    mine.sync()
    assert [team for team, _ in mine._candidates] == ["b"]
    clock.advance(20)
    mine.sync()
    assert not mine._candidates


def test_a_member_without_gpus_changes_the_candidate_of_its_gang() -> None:
    world = Memory()
    world.gang("a", "g", 2, 4, size=1)
    world.gang("a", "g", 3, 0, size=1, first=2)
    world.settle()
    kept = Candidates(world.cache, world.queue, world.budgets, "a", "V100")
    kept.update(set())
    assert [pod.name for pod in kept.pods["a/g", "V100"]] == ["g-2", "g-1", "g-0"]
    world.drop("a", "g-2")
    kept.update(set())
    assert [pod.name for pod in kept.pods["a/g", "V100"]] == ["g-1", "g-0"]


def test_units_that_share_a_node_with_a_renewed_one_are_renewed_too() -> None:
    world = Memory(machines=4)
    world.pod("a", "running", 1, nodeName="n0", schedulerName="other")
    world.settle()
    state, pods = world.cache.tables.state, world.cache.tables.pods
    booking = Booking(0, (0,) * len(state.resources))
    (pod,) = pods.values()
    wide = [NominatedPlace(pod, "n0", booking), NominatedPlace(pod, "n1", booking)]
    places = {"wide": wide, "beside": [wide[1]], "apart": [NominatedPlace(pod, "n2", booking)]}
    reservations = Reservations(world.cache)
    current = {unit: (mine, True) for unit, mine in places.items()}
    assert reservations._find_affected(current, set()) == set(places)
    reservations._renewed, reservations._position = dict(current), state.position
    reservations._keys_by_unit = {unit: [] for unit in places}
    assert reservations._find_affected(current, set()) == set()
    assert reservations._find_affected(current, {pod}) == {"wide", "beside"}
    state.release(pod.uid)
    assert reservations._find_affected(current, set()) == {"wide", "beside"}


def test_a_deleted_pod_that_holds_resources_is_known_without_a_search() -> None:
    world = Memory()
    world.pod("a", "one", 1)
    world.settle()
    usage: TeamUsage = world.cache.quotas
    assert not usage.deleting_pods()
    item = world.items["a/one"]
    item["metadata"]["deletionTimestamp"] = "2099-01-01T00:00:00Z"
    world.pod_handler.put(item)
    assert [pod.name for pod in usage.deleting_pods()] == ["one"]
    usage.put_quota("a", None)  # counts everything anew
    assert [pod.name for pod in usage.deleting_pods()] == ["one"]
    world.drop("a", "one")
    assert not usage.deleting_pods()


def test_readers_that_fall_behind_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_journal, "MAX_ENTRIES", 2)
    journal = ChangeJournal[str]()
    assert journal.since(-1) is None
    start = journal.position
    journal.record("a")
    journal.record("b")
    assert journal.since(start) == ["a", "b"]
    assert journal.since(journal.position) == []
    journal.record("c")
    assert journal.since(start) is None
    assert journal.since(start + 2) is None
    assert journal.since(journal.position - 1) == ["c"]
