"""Quotas of teams on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.world import SYSTEM, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


@pytest.fixture
def team(world: World) -> Iterator[World]:
    """The test's namespace belongs to a team with 8 guaranteed V100 and 4 more to borrow."""
    gpus = [{"gpu": "V100", "guaranteed": 8, "borrow": 4, "weight": 1}]
    data = {"version": 1, "team": "vision", "namespaces": [world.namespace], "gpus": gpus, "shapes": [], "cpu": 40.0}
    world.config("avactl-quota-vision", "quota", data)
    yield world
    world.kube.delete("v1", "ConfigMap", "avactl-quota-vision", SYSTEM)


def test_a_team_gets_what_its_quota_says_and_no_more(team: World) -> None:
    team.node("a")
    team.node("b")
    team.ready()
    team.start()
    for number in range(3):
        team.pod(f"p{number}", 4)
    team.bound()
    team.pod("more", 1)
    assert team.waiting("more") == ("quota of team vision: requests 1 V100, uses 12 of 12 (8 guaranteed + 4 borrowed)")
    team.pod("cpus", cpu="38")
    assert team.waiting("cpus") == "quota of team vision: requests 38 CPUs, uses 3 of 40"
    team.kube.delete("v1", "Pod", "p0", team.namespace)
    team.bound("more")


def test_what_must_not_be_stopped_runs_on_guaranteed_gpus(team: World) -> None:
    team.node("a")
    team.node("b")
    team.ready()
    team.start()
    team.pod("first", 8)
    team.bound("first")
    team.pod("sure", 2, notes={"avactl.dev/preemptible": "false"})
    # It takes guaranteed GPUs: now the first one borrows.
    team.bound("sure")
    team.pod("more", 8, notes={"avactl.dev/preemptible": "false"})
    assert "requests 8 V100, uses 2 of 8 (non-preemptible pods use guaranteed GPUs only)" in team.waiting("more")


def test_a_gang_starts_only_if_all_of_it_is_within_the_quota(team: World) -> None:
    team.node("a")
    team.node("b")
    team.ready()
    team.start()
    team.gang("train", 2)
    assert "requests 16 V100, uses 0 of 12" in team.waiting("train-0")
    assert not any(team.nodes_of().values())
