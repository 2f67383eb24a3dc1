"""The clock of a job."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest
from avactl_worker import messages as m

from avactl.daemons.elastic.clock import StepClock
from avactl.daemons.elastic.service import MemberSession, Service
from avactl.daemons.elastic.state.store import StateStore


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


def test_no_worker_begins_before_all_have_joined() -> None:
    clock = StepClock(workers=3)
    assert [clock.begin(worker, 0, 5) for worker in (1, 2, 1)] == [None] * 3
    clock.remove(2)  # it was killed, and takes its place again later
    before = clock.advanced
    assert clock.begin(3, 0, 5) is None
    assert clock.begin(4, 0, 5) == 1
    assert clock.advanced > before  # those that wait ask again
    assert [clock.begin(worker, 0, 5) for worker in (1, 3)] == [1, 1]
    clock.remove(3)  # after the start, a lost worker holds up nobody
    assert clock.begin(1, 2, 5) == 2


def test_the_clock_of_a_restarted_master_has_started_if_a_worker_computes() -> None:
    clock = StepClock(workers=3)
    clock.begin(1, 4, 0)
    assert clock.begin(2, 0, 0) == 4


def test_a_restarted_master_knows_the_steps_of_workers_that_compute(tmp_path: Path) -> None:
    service = Service(StateStore(tmp_path / "state", 0.0), 0.0, settled=False)
    members = {}
    for name, step in (("slow", 1), ("fast", 3)):
        members[name] = member = MemberSession()
        join = m.Join(worker=name, incarnation=step, library="0")
        assert service.handle(member, m.Request(id=1, join=join), 0.1) is not None
        assert service.handle(member, m.Request(id=2, resume=m.Resume(step=step)), 0.2) is not None
    fast = m.Request(id=3, clock=m.Clock(step=4, staleness=2))
    assert service.handle(members["fast"], fast, 5.0) is None
    assert service.handle(members["slow"], m.Request(id=3, clock=m.Clock(step=2, staleness=2)), 5.1) is not None
    answer = service.handle(members["fast"], fast, 5.2)
    assert answer is not None
    assert answer.step == 4


def test_the_master_bounds_what_workers_ask_for(tmp_path: Path) -> None:
    service = Service(StateStore(tmp_path / "state", 0.0), 0.0, staleness=1)
    members = [MemberSession(), MemberSession()]
    for index, member in enumerate(members):
        service.handle(member, m.Request(id=1, join=m.Join(worker=f"w{index}", incarnation=index, library="0")), 0.0)
        service.handle(member, m.Request(id=2, clock=m.Clock(step=0, staleness=1000)), 0.0)
    answers = [
        service.handle(members[0], m.Request(id=step, clock=m.Clock(step=step, staleness=1000)), 0.0) for step in (2, 3)
    ]
    assert [answer and answer.step for answer in answers] == [2, None]
