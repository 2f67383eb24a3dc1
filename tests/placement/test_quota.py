"""Quotas: what may start, what is due to whom, and who gives back: never more than is needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.quota import Ledger, QuotaLimit, QuotaNode, QuotaRefusal, QuotaShape, TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim, make_room

V = "V100"


def quota(name: str, guaranteed: int, borrow: int | None = 0, weight: int = 1, parent: str | None = None) -> QuotaNode:
    return QuotaNode(name, {V: QuotaLimit(guaranteed, borrow, weight)}, parent=parent)


def work(
    key: str,
    team: str,
    gpus: int,
    members: int = 1,
    least: int | None = None,
    started: float = 0,
    priority: int = 0,
    serving: bool = False,
    preemptible: bool = True,
) -> TeamWorkload:
    return TeamWorkload(
        key, team, members, gpus, V, least, started, priority, serving, preemptible, guaranteed_only=not preemptible
    )


def ledger(*quotas: QuotaNode, running: tuple[TeamWorkload, ...] = (), total: int = 32) -> Ledger:
    book = Ledger(quotas, {V: total})
    for each in running:
        book.start(each)
    return book


def test_limits_are_guarantee_and_borrowing() -> None:
    book = ledger(quota("a", 8, 4), running=(work("x", "a", 8),))
    assert book.may_start(work("y", "a", 4)) == []
    assert book.may_start(work("y", "a", 5)) == [QuotaRefusal("a", V, 8, 5, 12, 8)]
    # Non-preemptible work counts against the guarantee, beside which the others borrow.
    assert book.may_start(work("y", "a", 4, preemptible=False)) == []
    assert book.may_start(work("y", "a", 5, preemptible=False)) == [QuotaRefusal("a", V, 8, 5, 12, 8)]
    book.start(work("sure", "a", 4, preemptible=False))
    book.end("x")
    assert book.may_start(work("y", "a", 4, preemptible=False)) == []
    assert book.may_start(work("y", "a", 5, preemptible=False)) == [QuotaRefusal("a", V, 4, 5, 8, 8)]
    assert book.copy().may_start(work("y", "a", 5, preemptible=False)) == [QuotaRefusal("a", V, 4, 5, 8, 8)]
    book.end("sure")
    book.start(work("x", "a", 8))
    assert book.borrowed("a", V) == 0
    book.start(work("y", "a", 4))
    assert book.borrowed("a", V) == 4
    book.resize("y", 0)
    book.end("x")
    assert book.used("a", V) == 0


def test_models_without_a_limit_are_not_for_the_team_and_teams_without_a_quota_have_none() -> None:
    book = ledger(quota("a", 8))
    assert book.may_start(TeamWorkload("x", "a", 1, 1, "H100"))[0].limit == 0
    assert book.may_start(TeamWorkload("x", "nobody", 100, 8, "H100")) == []


def test_whole_machines_count_as_guaranteed() -> None:
    given = QuotaNode("a", {V: QuotaLimit(4, 2)}, (QuotaShape(2, 8, V), QuotaShape(1, 8, "H100")))
    assert given.limit(V) == QuotaLimit(20, 2)
    assert given.limit("H100") == QuotaLimit(8, 0)


def test_parents_limit_all_below() -> None:
    book = ledger(quota("org", 8, 2), quota("a", 8, 8, parent="org"), quota("b", 8, parent="org"))
    book.start(work("x", "a", 8))
    assert [refusal.quota for refusal in book.may_start(work("y", "b", 4))] == ["org"]
    assert book.may_start(work("y", "b", 2)) == []
    with pytest.raises(ValueError, match="in a cycle"):
        Ledger([quota("a", 1, parent="b"), quota("b", 1, parent="a")], {})
    with pytest.raises(ValueError, match="does not exist"):
        Ledger([quota("a", 1, parent="c")], {})


def test_amounts_are_limited_too() -> None:
    book = Ledger([QuotaNode("a", amounts=(None, 100))], {})
    book.start(TeamWorkload("x", "a", 3, amounts=(5, 20)))
    assert book.may_start(TeamWorkload("y", "a", 2, amounts=(5, 20))) == []
    assert book.may_start(TeamWorkload("y", "a", 3, amounts=(5, 20))) == [QuotaRefusal("a", 1, 60, 60, 100, 100)]


def test_idle_gpus_are_due_by_weight() -> None:
    book = ledger(
        quota("a", 0, None, weight=1),
        quota("b", 0, None, weight=3),
        quota("owner", 16),
        running=(work("x", "a", 20), work("y", "b", 4)),
    )
    assert book.shares(V) == {"a": 8.0, "b": 24.0}
    assert book.shares(V, "owner") == {"a": 8.0, "b": 24.0, "owner": 16.0}
    capped = ledger(quota("a", 0, None), quota("b", 0, 4, weight=9), running=(work("x", "a", 20), work("y", "b", 4)))
    assert capped.shares(V) == {"a": 28.0, "b": 4.0}


def test_surplus_of_the_one_most_over_goes_first_then_the_youngest() -> None:
    book = ledger(
        quota("owner", 16),
        quota("a", 4, None),
        quota("b", 4, None),
        running=(
            work("a-old", "a", 4, started=1),
            work("a-elastic", "a", 2, 4, least=2, started=2),
            work("a-young", "a", 4, started=3),
            work("b-one", "b", 8, started=9),
            work("b-two", "b", 4, started=8),
        ),
    )
    assert make_room(book, work("mine", "owner", 2), free=4) == []
    assert make_room(book, work("mine", "owner", 2)) == [Reclaim("a-elastic", 1, False, "surplus")]
    assert make_room(book, work("mine", "owner", 4)) == [Reclaim("a-elastic", 2, False, "surplus")]
    # Without its surplus team a has as much over its share as b, and without its youngest, less.
    surplus, young = Reclaim("a-elastic", 2, False, "surplus"), Reclaim("a-young", 1, True, "borrowed")
    assert make_room(book, work("mine", "owner", 8)) == [surplus, young]
    assert make_room(book, work("mine", "owner", 9)) == [
        Reclaim("a-elastic", 1, False, "surplus"),
        Reclaim("b-one", 1, True, "borrowed"),
    ]


def test_never_more_than_is_needed() -> None:
    """The surplus that was found first is left alone where a whole work is needed anyhow."""
    book = ledger(
        quota("owner", 16),
        quota("a", 0, None),
        running=(work("elastic", "a", 1, 3, least=2, started=1), work("big", "a", 16, started=2)),
    )
    assert make_room(book, work("mine", "owner", 16), free=0) == [Reclaim("big", 1, True, "borrowed")]


def test_guarantees_of_others_are_not_touched() -> None:
    book = ledger(quota("owner", 8), quota("a", 16), running=(work("x", "a", 16),), total=16)
    assert make_room(book, work("mine", "owner", 8)) is None


def test_borrowers_even_out_by_their_shares() -> None:
    book = ledger(
        quota("a", 0, None),
        quota("b", 0, None),
        total=16,
        running=(work("one", "a", 8, started=1), work("two", "a", 8, started=2)),
    )
    assert make_room(book, work("mine", "b", 8)) == [Reclaim("two", 1, True, "borrowed")]
    assert make_room(book, work("mine", "b", 9)) is None
    book.end("two")
    book.start(work("mine", "b", 8))
    assert make_room(book, work("more", "a", 1)) is None


def test_priority_holds_inside_of_a_team() -> None:
    book = ledger(
        quota("a", 16),
        quota("b", 16, None),
        total=32,
        running=(
            work("low", "a", 8, priority=1),
            work("high", "a", 8, priority=5),
            work("theirs", "b", 16),
        ),
    )
    assert make_room(book, work("mine", "a", 8, priority=3)) == [Reclaim("low", 1, True, "priority")]
    assert make_room(book, work("mine", "a", 16, priority=3)) is None
    assert make_room(book, work("mine", "a", 16, serving=True)) == [
        Reclaim("low", 1, True, "priority"),
        Reclaim("high", 1, True, "priority"),
    ]
    assert make_room(book, work("mine", "a", 8, priority=1)) is None


def test_own_work_that_ranks_below_stops_first_if_only_then_the_team_is_entitled_to_others_gpus() -> None:
    book = ledger(
        quota("a", 6, 6),
        quota("b", 6, 6),
        total=12,
        running=(
            work("low", "a", 3, priority=1),
            work("high", "a", 2, priority=2),
            work("theirs", "b", 3, priority=1),
            work("theirs high", "b", 4, priority=2),
        ),
    )
    assert make_room(book, work("mine", "a", 4, priority=2)) == [
        Reclaim("low", 1, True, "priority"),
        Reclaim("theirs", 1, True, "borrowed"),
    ]
    # Without work that ranks below, the guarantee is used up by equals.
    assert make_room(book, work("mine", "a", 4, priority=1)) is None


def test_own_surplus_makes_room_for_equals() -> None:
    book = ledger(quota("a", 8), running=(work("elastic", "a", 1, 8, least=2),))
    assert make_room(book, work("mine", "a", 4)) == [Reclaim("elastic", 4, False, "surplus")]


def test_victims_stay_in_order_as_work_starts_ends_and_shrinks() -> None:
    book = ledger(quota("a", 8), running=(work("old", "a", 1, started=1), work("young", "a", 1, started=9)))
    assert [each.key for each in book.victims("a")] == ["young", "old"]
    book.start(work("elastic", "a", 1, 4, least=1, started=5))
    book.start(work("other", "b", 1))
    assert [each.key for each in book.victims("a")] == ["young", "elastic", "old"]
    book.resize("elastic", 2)
    assert [each.members for each in book.victims("a")] == [1, 2, 1]
    book.end("young")
    book.start_all([work("low", "a", 1, priority=-1)])
    assert [each.key for each in book.victims("a")] == ["low", "elastic", "old"]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4))
def test_a_bound_on_what_is_enough_changes_no_plan(nodes: list[int], needed: int) -> None:
    """Members of one node must free enough: the bound begins the search where that may be."""
    running = tuple(work(f"w{number}", "a", 1, started=number) for number in range(len(nodes)))
    book = ledger(quota("a", 100), running=running, total=100)

    def freed(takes: Sequence[Reclaim]) -> Counter[int]:
        return Counter(nodes[int(str(take.key)[1:])] for take in takes)

    def enough(takes: Sequence[Reclaim]) -> bool:
        return max(freed(takes).values(), default=0) >= needed

    so_far: list[Reclaim] = []

    def hopeful(take: Reclaim) -> bool:
        so_far.append(take)
        return max(freed(so_far).values()) >= needed - 1

    asked = work("mine", "a", 1, priority=9)
    assert make_room(book, asked, enough=enough, hopeful=hopeful) == make_room(book, asked, enough=enough)


def test_what_must_not_stop_does_not() -> None:
    book = ledger(quota("owner", 8), running=(work("x", "guest", 8, preemptible=False),), total=8)
    assert make_room(book, work("mine", "owner", 8)) is None


def test_places_decide_what_is_enough() -> None:
    book = ledger(quota("owner", 8), running=tuple(work(f"x{i}", "guest", 4, started=i) for i in range(4)), total=16)
    same_machine = {"x0", "x2"}
    plan = make_room(book, work("mine", "owner", 8), enough=lambda takes: same_machine <= {take.key for take in takes})
    assert plan is not None
    assert {take.key for take in plan} == same_machine


@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_plans_are_minimal_and_guarantees_hold(seed: int) -> None:
    rng = random.Random(seed)
    total = 24
    book = ledger(quota("a", 8, None), quota("b", 8, None, weight=2), quota("c", 8, 4), total=total)
    for index in range(rng.randrange(10)):
        members = rng.randrange(1, 4)
        each = work(
            f"w{index}",
            rng.choice("abcd"),
            rng.choice([1, 2, 4]),
            members,
            rng.randrange(1, members + 1),
            index,
            rng.randrange(2),
            rng.random() < 0.2,
        )
        if sum(w.total for w in book.works.values()) + each.total <= total and not book.may_start(each):
            book.start(each)
    free = total - sum(each.total for each in book.works.values())
    asked = work("mine", rng.choice("abc"), rng.choice([1, 2, 4, 8]), priority=rng.randrange(2))
    plan = make_room(book, asked, free)
    within = book.used(asked.team, V) + asked.total <= book.limit(asked.team, V).guaranteed
    if plan is None:
        assert not within, "a guarantee that nobody gives back"
        return

    def does(given: dict[object, int]) -> bool:
        after, own_gone = book.copy(), book.copy()
        for key, members in given.items():
            after.resize(key, after.works[key].members - members)
            if book.works[key].team == asked.team:
                own_gone.resize(key, own_gone.works[key].members - members)
        due = max(own_gone.shares(V, asked.team, asked.total)[asked.team], book.limit(asked.team, V).guaranteed)
        theirs = any(members for key, members in given.items() if book.works[key].team != asked.team)
        if theirs and own_gone.used(asked.team, V) + asked.total > due:
            return False
        return not after.may_start(asked) and total - sum(w.total for w in after.works.values()) >= asked.total

    given: dict[object, int] = {take.key: take.members for take in plan}
    assert does(given)
    for take in plan:
        running = book.works[take.key]
        assert take.whole == (take.members == running.members)
        assert take.whole or take.members <= running.surplus
        if running.team != asked.team:
            assert book.borrowed(running.team, V) > 0
        elif take.whole:
            assert running.rank < asked.rank
        less = [0, take.members - 1] if not take.whole else [0, *range(1, running.surplus + 1)]
        assert not any(does({**given, take.key: members}) for members in less)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_shares_add_up(running: list[tuple[str, int]]) -> None:
    book = ledger(quota("a", 4, None), quota("b", 4, 6, weight=2), total=40)
    for index, (team, gpus) in enumerate(running):
        each = work(f"w{index}", team, gpus)
        if sum(w.total for w in book.works.values()) + gpus <= 40 and not book.may_start(each):
            book.start(each)
    due = book.shares(V)
    assert due.keys() == {each.team for each in book.works.values()}
    assert all(share <= (10 if team == "b" else 40) for team, share in due.items())
    used = sum(book.used(team, V) for team in due)
    idle = 40 - sum(min(book.used(team, V), book.limit(team, V).guaranteed) for team in due)
    assert sum(max(0.0, due[team] - book.limit(team, V).guaranteed) for team in due) <= idle + 1e-6
    assert used <= 40


def test_many_works_count_as_one_by_one() -> None:
    works = [work("x", "a", 2), work("y", "a", 2), work("z", "b", 3)]
    one, all_ = ledger(quota("a", 4, None), running=tuple(works)), ledger(quota("a", 4, None))
    all_.start_all(works)
    for team in ("a", "b"):
        assert all_.used(team, V) == one.used(team, V) > 0
    all_.end("x")
    assert all_.used("a", V) == 2


def test_a_work_runs_once() -> None:
    book = ledger(running=(work("x", "a", 1),))
    with pytest.raises(ValueError, match="is already running"):
        book.start(work("x", "b", 1))
    with pytest.raises(ValueError, match="are already running"):
        book.start_all([work("y", "b", 1), work("x", "b", 1)])
    other = book.copy()
    other.end("x")
    assert book.used("a", V) == 1


def test_each_member_has_a_limit_of_its_own() -> None:
    book = Ledger([QuotaNode("a", {V: QuotaLimit(16)}, per_member={V: 8})], {V: 16})
    ann = TeamWorkload("x", "a", 3, 2, V, member="ann")
    book.start_all([ann])
    more = TeamWorkload("y", "a", 2, 2, V, member="ann")
    assert book.may_start(more) == [QuotaRefusal("a", V, 6, 4, 8, 8, "ann")]
    assert book.copy().may_start(more) == book.may_start(more)
    assert book.may_start(replace(more, member="bob")) == []
    assert book.may_start(replace(more, member="")) == []
    assert book.may_start(replace(more, team="b")) == []
    book.resize("x", 2)
    assert book.may_start(more) == []
    book.end("x")
    book.start(more)
    assert book.may_start(replace(ann, key="z"))[0].used == 4
