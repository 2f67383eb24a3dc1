"""Plan and scheduler agree: random sets of jobs, the plan of each, and what then happens on a real API server."""

from __future__ import annotations

import pytest

from tests.plan.arena import Arena, agree

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("plan")]

SHORT = (*range(5), 115, 150, 2170, 3176, 4113)
"""Those at the end were not agreed on at some time."""
SHORT_GATES = range(6)
LONG = range(300)


def test_plans_say_what_the_scheduler_then_does(arena: Arena) -> None:
    wrong = [line for seed in SHORT for line in agree(arena, seed)]
    assert not wrong, "\n".join(wrong)
    assert len(arena.counts) >= 3, arena.counts


def test_plans_say_who_waits_for_jobs_and_datasets(arena: Arena) -> None:
    wrong = [line for seed in SHORT_GATES for line in agree(arena, seed, gates=True)]
    assert not wrong, "\n".join(wrong)
    assert len(arena.counts) >= 3, arena.counts


@pytest.mark.slow
def test_plans_say_who_waits_for_jobs_and_datasets_300_times(arena: Arena) -> None:
    wrong = [line for seed in LONG for line in agree(arena, seed, gates=True)]
    assert not wrong, "\n".join(wrong)
    assert len(arena.counts) >= 3, arena.counts


@pytest.mark.slow
def test_plans_say_what_the_scheduler_then_does_300_times(arena: Arena) -> None:
    wrong = [line for seed in LONG for line in agree(arena, seed)]
    assert not wrong, "\n".join(wrong)
    assert len(arena.counts) >= 3, arena.counts
