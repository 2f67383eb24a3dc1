"""Gangs by which a tenant would take more than is given: what a part of a gang says does not count for all of it."""

from __future__ import annotations

import pytest

from avactl.contracts.pod_annotations import USER
from tests.scheduler.memory import Memory

GANG = {"avactl.dev/gang": "g"}


@pytest.mark.parametrize("annotation", [{}, {"avactl.dev/preemptible": "false"}], ids=["plain", "not preemptible"])
def test_a_pod_without_gpus_protects_no_borrowed_gang(annotation: dict[str, str]) -> None:
    world = Memory(2, 8)
    world.quota("evil", 0, 16)
    world.quota("vision", 16, 0)
    size = {"avactl.dev/gang-size": "3"}
    world.pod("evil", "tiny", 0, {**size, **annotation}, labels=GANG)
    for number in range(2):
        world.pod("evil", f"big-{number}", 8, size, labels=GANG)
    world.settle()
    assert len(world.where()) == 3
    world.pod("vision", "owner", 8)
    world.settle()
    assert world.evictions


def test_a_gang_of_several_members_evicts_nobody_in_vain() -> None:
    world = Memory(3, 8)
    world.quota("vision", 24, 0, per_member=8)
    world.quota("ads", 0, 24)
    ann = {USER.name: "ann"}
    world.pod("vision", "runs", 8, ann)
    world.settle()
    for number in range(2):
        world.pod("ads", f"crawl-{number}", 8)
    world.settle()
    size = {"avactl.dev/gang-size": "2"}
    world.pod("vision", "first", 0, size, labels=GANG)
    world.pod("vision", "second", 8, {**ann, **size}, labels=GANG)
    world.settle()
    assert not world.evictions


def test_a_pod_that_joins_a_running_gang_names_a_level_that_exists() -> None:
    world = Memory(2, 8)
    world.pod("vision", "runs", 1, {"avactl.dev/gang-size": "1"}, labels=GANG)
    world.settle()
    world.pod("vision", "more", 1, {"avactl.dev/gang-size": "1", "avactl.dev/within": "nonsense"}, labels=GANG)
    world.settle()
    assert "not a level" in world.said["more"] or "more" in str(world.where())
