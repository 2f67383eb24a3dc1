"""Plans for room: none twice while nothing was freed, and every group has its turn after a rest."""

from __future__ import annotations

import pytest

from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.preemption import throttle
from avactl.scheduler.preemption.throttle import PreemptionThrottle
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue
from tests.fake_clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Time as the test wants it; nothing is saved."""
    clock = FakeClock().set_in(monkeypatch, throttle)
    monkeypatch.setattr(throttle, "MAX_SAVED_S", 0.0)
    return clock


def parked(queue: SchedulingQueue, name: str, group: str) -> QueuedPodGroup:
    """A unit that waits."""
    item = {
        "metadata": {"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": []},
        "status": {},
    }
    unit = queue.units[name] = QueuedPodGroup(name, gang=False)
    unit.add(PodInfo(item, 0.0))
    queue.mark_unschedulable(unit, group)
    return unit


def plan_in_vain(pace: PreemptionThrottle, clock: FakeClock, unit: str, group: str) -> None:
    """A plan of one second."""
    assert pace.may_begin(unit, group)
    clock.now += 1.0
    pace.record_failure(group, 7, "")


def test_a_vain_plan_is_remembered_until_something_is_freed(clock: FakeClock) -> None:
    pace = PreemptionThrottle(SchedulingQueue(), 0.1)
    assert pace.recall_failure("g", 7) is None
    plan_in_vain(pace, clock, "u", "g")
    assert pace.recall_failure("g", 7) == ""
    assert pace.recall_failure("g", 8) is None


def test_vain_plans_take_their_share_and_each_group_has_its_turn(clock: FakeClock) -> None:
    queue = SchedulingQueue()
    for name in ("b1", "b2", "c1"):
        parked(queue, name, name[0])
    pace = PreemptionThrottle(queue, 0.1)
    plan_in_vain(pace, clock, "a1", "a")
    for name in ("b1", "b2", "c1"):
        assert not pace.may_begin(name, name[0])
    clock.now += 8.9
    pace.resume_skipped()
    assert queue.pop() is None  # it rests nine times as long as it took
    for expected in ("b1", "c1"):
        clock.now += 9.2
        pace.resume_skipped()
        pace.resume_skipped()
        unit = queue.pop()
        assert unit is not None
        assert (unit.key, queue.pop()) == (expected, None)
        assert not pace.may_begin("new", "n")  # whose turn it is comes first
        plan_in_vain(pace, clock, unit.key, expected[0])


def test_what_was_saved_goes_first(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_SAVED_S", 2.0)
    made = PreemptionThrottle(SchedulingQueue(), 0.1)
    for wait in (0.0, 1000.0):
        clock.now += wait
        for name in ("a", "b"):
            plan_in_vain(made, clock, name, name)
        plan_in_vain(made, clock, "c", "c")
        # Three took 3 s, 2 were saved, and 0.3 came while they were made.
        clock.now += 6.9
        assert not made.may_begin("d", "d")
        clock.now += 0.2
        assert made.may_begin("d", "d")


def test_a_unit_that_does_not_take_its_turn_holds_up_nobody_for_long(clock: FakeClock) -> None:
    queue = SchedulingQueue()
    parked(queue, "b1", "b")
    pace = PreemptionThrottle(queue, 0.1)
    plan_in_vain(pace, clock, "a1", "a")
    assert not pace.may_begin("b1", "b")
    clock.now += 10.0
    pace.resume_skipped()
    queue.drop("b1")
    assert not pace.may_begin("c1", "c")
    clock.now += 1.1
    assert pace.may_begin("c1", "c")
