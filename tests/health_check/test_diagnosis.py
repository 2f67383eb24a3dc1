"""Who is at fault, from the outcomes of tests."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from avactl_worker.health_check.diagnosis import Diagnosis, Result
from hypothesis import given
from hypothesis import strategies as st

ERROR = Result(error="reset")


def diagnose(
    count: int, bad: Collection[int] = (), silent: Collection[int] = (), seconds: Callable[[int], float] = lambda _: 1.0
) -> tuple[Diagnosis, list[list[list[int]]]]:
    """Test workers until the end: a group with a bad one fails, and the slowest one decides its time."""
    diagnosis, rounds = Diagnosis(), []
    while groups := diagnosis.groups(range(count)):
        rounds.append(groups)
        members = [each for group in groups for each in group]
        assert len(members) == len(set(members))
        assert len(rounds) < 4 * count + 8
        results = {}
        for group in groups:
            fails = any(each in bad or each in silent for each in group)
            taken = Result(max(seconds(each) for each in group))
            results.update({each: ERROR if fails else taken for each in group if each not in silent})
        diagnosis.record(groups, results)
    return diagnosis, rounds


def test_neighbours_are_tested_once_if_all_is_well() -> None:
    assert diagnose(6)[1] == [[[0, 1], [2, 3], [4, 5]]]
    assert diagnose(5)[1] == [[[0, 1], [2, 3, 4]]]
    assert diagnose(3)[1] == [[[0, 1, 2]]]
    assert diagnose(1)[1] == [[[0]]]


def test_a_worker_that_fails_twice_is_at_fault_and_its_first_partner_is_not() -> None:
    diagnosis, rounds = diagnose(6, bad={3})
    assert diagnosis.faulty == {3: "reset"}
    assert len(rounds) == 2
    assert {frozenset(pair) & {2, 3} for pair in rounds[1]} == {frozenset({2}), frozenset({3})}


def test_two_silent_workers_of_two_are_told_apart() -> None:
    assert diagnose(2, silent={1})[0].faulty == {1: "no answer"}


def test_nobody_passes() -> None:
    diagnosis, rounds = diagnose(4, bad=range(4))
    assert diagnosis.stuck
    assert diagnosis.faulty == {}
    assert len({frozenset(map(frozenset, groups)) for groups in rounds}) == 3


def test_a_slow_worker_is_tested_again_with_a_fast_one() -> None:
    diagnosis, rounds = diagnose(8, seconds=lambda index: 5.0 if index == 4 else 1.0)
    assert diagnosis.slow() == {4: pytest.approx(0.2)}
    assert {4, 5} <= {each for pair in rounds[1] for each in pair}
    assert len(rounds) == 2


def test_another_pod_of_a_worker_is_tested_anew() -> None:
    diagnosis, _ = diagnose(4, bad={2})
    diagnosis.forget(2)
    (pair,) = diagnosis.groups(range(4))
    assert 2 in pair
    diagnosis.record([pair], {each: Result(1.0) for each in pair})
    assert diagnosis.groups(range(4)) == []
    assert diagnosis.faulty == {}


@given(st.integers(2, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=n))))
def test_all_bad_ones_are_found_and_no_other(case: tuple[int, set[int]]) -> None:
    count, bad = case
    healthy = count - len(bad)
    diagnosis, _ = diagnose(count, bad=bad)
    assert set(diagnosis.faulty) <= bad
    if healthy > count / 2:
        assert set(diagnosis.faulty) == bad
        assert not diagnosis.stuck
