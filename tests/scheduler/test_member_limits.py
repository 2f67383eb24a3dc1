"""`perMember` of a quota: one member of a team does not take the GPUs of the others."""

from __future__ import annotations

from typing import Any

from avactl.contracts.pod_annotations import PREEMPTIBLE, USER
from avactl.scheduler.objects.wait_reasons import WaitReason
from tests.scheduler.memory import Memory

ANN, BOB = {USER.name: "ann@example.com"}, {USER.name: "bob@example.com"}


def lab(machines: int = 7, per_member: int | None = 16, guaranteed: int = 56, **quota: Any) -> Memory:
    world = Memory(machines)
    world.quota("vision", guaranteed, 0, per_member=per_member, **quota)
    return world


def test_a_member_waits_and_the_others_start() -> None:
    world = lab()
    for number in range(6):
        world.pod("vision", f"ann-{number}", 8, ANN)
    world.pod("vision", "bob-0", 8, BOB)
    world.pod("vision", "team", 32)
    world.settle()
    assert [*world.where()] == ["ann-0", "ann-1", "bob-0"]
    assert world.said["ann-2"] == (
        "quota of team vision: requests 8 V100, ann@example.com uses 16 of 16 of each member"
    )
    assert world.reasons["ann-2"] is WaitReason.QUOTA
    world.drop("vision", "ann-0")
    world.settle()
    assert [*world.where()] == ["ann-1", "ann-2", "bob-0"]


def test_without_a_limit_nothing_changes() -> None:
    world = lab(per_member=None)
    for number in range(6):
        world.pod("vision", f"ann-{number}", 8, ANN)
    world.settle()
    assert len(world.where()) == 6


def test_a_gang_that_exceeds_the_limit_never_starts() -> None:
    world = lab()
    world.gang("vision", "ann", 3, 8, notes=ANN)
    world.gang("vision", "bob", 2, 8, notes=BOB)
    world.settle()
    assert [*world.where()] == ["bob-0", "bob-1"]
    assert world.said["ann-0"].endswith("uses 0 of 16 of each member; it can never start with this quota")


def test_an_elastic_gang_grows_up_to_the_limit() -> None:
    world = lab()
    world.gang("vision", "ann", 6, 4, size=2, notes=ANN)
    world.settle()
    assert [*world.where()] == ["ann-0", "ann-1", "ann-2", "ann-3"]


def test_pods_in_a_gang_of_others_count_for_their_own_member() -> None:
    """Labels of a gang are anybody's: what a member adds to the gang of another one is not the other one's."""
    world = lab(per_member=8)
    world.pod("vision", "bob-1", 8, BOB)
    world.settle()
    gang = {"avactl.dev/gang": "mixed"}
    world.pod("vision", "mixed-0", 4, {**ANN, "avactl.dev/gang-size": "2"}, gang)
    world.pod("vision", "mixed-1", 4, {**BOB, "avactl.dev/gang-size": "2"}, gang)
    world.settle()
    assert [*world.where()] == ["bob-1"]
    assert "bob@example.com uses 8 of 8" in world.said["mixed-0"]


def test_a_member_preempts_only_own_pods_for_the_limit() -> None:
    world = lab(per_member=8)
    world.pod("vision", "bob", 8, BOB)
    world.pod("vision", "ann", 8, ANN)
    world.settle()
    world.pod("vision", "urgent", 8, ANN, priority=1000)
    world.settle()
    assert world.go() == ["ann"]
    world.settle()
    assert {*world.where()} == {"bob", "urgent"}
    assert world.restart().cache.quotas.current_ledger().used("vision", "V100") == 16_000


def test_what_is_reserved_for_a_member_counts() -> None:
    """A unit with a nomination holds its member's GPUs while its victims end."""
    world = lab(machines=2, guaranteed=16, per_member=8)
    world.pod("vision", "low-0", 8)
    world.pod("vision", "low-1", 8)
    world.settle()
    world.pod("vision", "ann-0", 8, ANN, priority=1000)
    world.pod("vision", "ann-1", 8, ANN, priority=1000)
    world.settle()
    assert len(world.go()) == 1
    world.settle()
    assert [name for name in world.where() if name.startswith("ann")] == ["ann-0"]


def test_shares_and_fixed_work_count() -> None:
    world = lab(per_member=1)
    for number in range(3):
        world.pod("vision", f"half-{number}", notes={**ANN, "avactl.dev/gpu-share": "0.5", PREEMPTIBLE.name: "false"})
    world.settle()
    assert len(world.where()) == 2
