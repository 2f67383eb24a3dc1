"""Preemptions that another replica carries out to the end, or that outlive a rebuilt state."""

from __future__ import annotations

import pytest

from avactl.scheduler.queue.scheduling_queue import is_partial
from tests.scheduler.memory import Memory
from tests.scheduler.test_room import HIGH, evicted
from tests.scheduler.test_room import lent as lent


@pytest.mark.parametrize("half", [0, 1, 2])
def test_another_scheduler_goes_on_where_one_died(lent: Memory, half: int) -> None:
    lent.gang("guest", "train", 2, 8)
    lent.settle()
    lent.gang("owner", "mine", 2, 8)
    lent.settle()
    assert evicted(lent) == ["train-0", "train-1"]
    # So many victims were deleted when it died, and their Job has made them anew.
    lent.drop("guest", *[f"train-{number}" for number in range(half)])
    lent.gang("guest", "train", half, 8, size=2)
    other = lent.restart()
    other.settle()
    assert evicted(other) == [f"train-{number}" for number in range(half, 2)]
    if half < 2:
        assert not any(name.startswith("mine") for name in other.where())
    other.go()
    other.settle()
    assert set(other.where()) == {"mine-0", "mine-1"}
    assert len(other.evictions) <= 1


@pytest.mark.parametrize("message", ["", "Preempted", "verdrängt für owner/mine", "Preempted for another/pod: x"])
def test_recovery_does_not_depend_on_messages(lent: Memory, message: str) -> None:
    """All that a scheduler has written for people may be in other words, or in another language."""
    lent.gang("guest", "theirs", 2, 8)
    lent.gang("owner", "mine", 2, 8)
    lent.settle()
    for item in lent.items.values():
        for condition in item["status"].get("conditions") or ():
            condition["message"] = message
    other = lent.restart()
    other.settle()
    (eviction,) = other.evictions
    assert eviction.preemption == lent.evictions[0].preemption
    assert {each.pod.name for each in eviction.victims} == {each.pod.name for each in lent.evictions[0].victims}
    assert {each.why for each in eviction.victims} == {"resumed"}
    other.go()
    other.settle()
    assert {"mine-0", "mine-1"} <= set(other.where())


def test_a_state_built_anew_keeps_what_was_kept(lent: Memory) -> None:
    lent.pod("guest", "a", 8)
    lent.pod("guest", "b", 8)
    lent.settle()
    lent.pod("owner", "mine", 8)
    lent.settle()
    lent.cache.tables.stale = True
    lent.pod("other", "thief", 8, **HIGH)
    lent.settle()
    lent.go()
    lent.settle()
    assert "mine" in lent.where()
    assert len(lent.evictions) == 1


def test_victims_stay_if_the_unit_starts_without_them(lent: Memory) -> None:
    lent.pod("guest", "a", 8)
    lent.gang("guest", "b", 2, 4)
    lent.settle()
    lent.pod("owner", "mine", 8)
    lent.settle()
    victims = [victim.pod for victim in lent.evictions[0].victims]
    assert {pod.name for pod in victims} == {"b-0", "b-1"}
    # Another machine comes free before they are deleted, so they are not.
    lent.drop("guest", "a")
    lent.settle()
    assert lent.where()["mine"] == "n0"
    assert not any(pod.evicting for pod in victims)
    # Half of the gang is lost later: the rest is a part of a gang like any other.
    lent.drop("guest", "b-0")
    lent.settle()
    assert is_partial(lent.queue.units[victims[1].gang])
