"""The clock of a job."""

from __future__ import annotations

import heapq
import random

import pytest

from avactl.elastic.clock import StepClock


@pytest.mark.parametrize("staleness", [0, 1, 3, 10])
def test_no_worker_is_further_ahead_than_the_bound_in_100_000_steps(staleness: int) -> None:
    clock, rng = StepClock(), random.Random(staleness)
    running = [(0.0, worker) for worker in range(8)]  # the time when a worker ends its step
    current = {worker: clock.begin(worker, 0, staleness) for worker in range(8)}
    waiting: list[int] = []
    steps = largest = 0
    while steps < 100_000:
        now, worker = heapq.heappop(running)
        asking, waiting = [worker, *waiting], []
        for each in asking:
            step = current[each]
            assert step is not None
            following = clock.begin(each, step + 1, staleness)
            if following is None:
                waiting.append(each)
                continue
            current[each] = following
            steps += 1
            heapq.heappush(running, (now + rng.expovariate(1.0), each))
        ahead = max(filter(None, current.values())) - min(filter(None, current.values()))
        assert ahead <= staleness
        largest = max(largest, ahead)
        # A worker whose turn came in this round may have freed one that was asked before it.
        while waiting and any(_may(clock, each, current[each], staleness) for each in waiting):
            each = next(each for each in waiting if _may(clock, each, current[each], staleness))
            waiting.remove(each)
            current[each] = clock.begin(each, (current[each] or 0) + 1, staleness)
            steps += 1
            heapq.heappush(running, (now + rng.expovariate(1.0), each))
    assert largest == staleness  # the bound is used
    assert running


def _may(clock: StepClock, worker: int, step: int | None, staleness: int) -> bool:
    return clock.begin(worker, (step or 0) + 1, staleness) is not None


def test_a_worker_that_joins_begins_with_the_slowest() -> None:
    clock = StepClock()
    assert clock.begin(1, 0, 5) == 1
    assert [clock.begin(1, step, 5) for step in range(2, 6)] == [2, 3, 4, 5]
    assert clock.begin(2, 0, 5) == 5


def test_a_worker_that_is_gone_holds_up_nobody() -> None:
    clock = StepClock()
    clock.begin(1, 0, 0)
    clock.begin(2, 0, 0)
    assert clock.begin(1, 2, 0) is None
    before = clock.advanced
    clock.remove(2)
    assert clock.advanced > before
    assert clock.begin(1, 2, 0) == 2
