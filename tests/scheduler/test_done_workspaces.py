"""Workspaces whose editor has ended by itself give their GPUs back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from avactl.contracts.pod_annotations import STOP_WHEN_DONE
from avactl.kube.client import ApiError, Rate, UnreachableError
from avactl.kube.timestamps import timestamp
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.done_workspaces import STOP_WINDOW_S, DoneWorkspaces
from tests.scheduler.memory import Memory

NOW = 1_800_000_000.0
OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "lin", "uid": "1"}
NOTES = {STOP_WHEN_DONE.name: "workspace"}
SCALE = "/apis/apps/v1/namespaces/vision/statefulsets/lin/scale"


class Api:
    """An API server that records what is scaled, and the clock."""

    def __init__(self) -> None:
        self.clock, self.time = self, NOW
        self.requests: list[tuple[str, str, Any]] = []
        self.error: Exception | None = None

    def now(self) -> float:
        return self.time

    async def send(self, method: str, path: str, body: Any, content_type: str = "") -> None:
        self.requests.append((method, path, body))
        if self.error is not None:
            raise self.error


class Reporter:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def stopped(self, pod: PodInfo, reason: str, note: str) -> None:
        self.notes.append(note)


class Lab:
    """A workspace that runs, with what its container says."""

    def __init__(
        self, name: str = "lin-0", notes: Mapping[str, str] = NOTES, owner: Mapping[str, str] | None = OWNER
    ) -> None:
        self.world, self.api, self.reporter, self.leads = Memory(1), Api(), Reporter(), True
        self.stops = DoneWorkspaces(
            self.api,  # type: ignore[arg-type]
            Rate(1000, 1000),
            self.world.cache.tables,
            self.reporter,  # type: ignore[arg-type]
            lambda: self.leads,
        )
        self.key = f"vision/{name}"
        self.world.pod("vision", name, 1, dict(notes), owner=owner)
        self.world.settle()

    def says(self, *statuses: dict[str, Any]) -> None:
        self.world.items[self.key]["status"]["containerStatuses"] = list(statuses)
        self.world.pod_handler.put(self.world.items[self.key])

    def tick(self) -> list[tuple[str, str, Any]]:
        """Requests of one tick."""

        async def ticks() -> None:
            self.stops.tick()
            self.stops.tick()
            await asyncio.sleep(0)
            await asyncio.gather(*self.stops._tasks.values())

        self.api.requests.clear()
        asyncio.run(ticks())
        return list(self.api.requests)


def ended(code: int = 0, ago: float = 1.0, name: str = "workspace", at: str = "state") -> dict[str, Any]:
    return {"name": name, at: {"terminated": {"exitCode": code, "finishedAt": timestamp(NOW - ago)}}}


STOPPED = [("PATCH", SCALE, {"spec": {"replicas": 0}})]


def test_an_editor_that_ended_stops_its_workspace() -> None:
    lab = Lab()
    assert lab.tick() == []
    lab.says({"name": "workspace", "state": {"running": {}}})
    assert lab.tick() == []
    lab.says(ended())
    assert lab.tick() == STOPPED
    assert lab.reporter.notes == ["the editor has ended; start it again: kubectl scale statefulset lin --replicas=1"]


def test_the_kubelet_has_restarted_it_meanwhile() -> None:
    lab = Lab()
    lab.says({**ended(at="lastState"), "state": {"running": {}}})
    assert lab.tick() == STOPPED


@pytest.mark.parametrize(
    "status",
    [
        ended(code=1),
        ended(code=137),
        ended(name="sidecar"),
        # It ended, was restarted and failed.
        {"name": "workspace", "state": ended(code=1)["state"], "lastState": ended(at="lastState")["lastState"]},
        {"name": "workspace", "state": {"terminated": {"exitCode": 0, "finishedAt": None}}},
        {"name": "workspace"},
    ],
)
def test_other_ends_are_restarted(status: dict[str, Any]) -> None:
    lab = Lab()
    lab.says(status)
    assert lab.tick() == []


@pytest.mark.parametrize(("ago", "stops"), [(1, True), (STOP_WINDOW_S + 2, False), (-3600, False)])
def test_a_scheduler_that_was_away_ends_no_later_session(ago: float, stops: bool) -> None:
    lab = Lab()
    lab.says({**ended(ago=ago, at="lastState"), "state": {"running": {}}})
    assert lab.tick() == STOPPED  # it saw the end, whatever the clock of the kubelet says
    other = Lab()
    item = lab.world.items[lab.key]
    other.world.drop("vision", "lin-0")
    other.world.items[lab.key] = item
    other.world.pod_handler.put(item)
    assert other.tick() == (STOPPED if stops else [])


def test_an_end_is_acted_on_for_a_minute() -> None:
    lab = Lab()
    lab.says(ended(ago=STOP_WINDOW_S))
    (pod,) = lab.stops._sessions.values()
    pod.done_seen -= STOP_WINDOW_S + 1
    lab.api.time += 2
    assert lab.tick() == []


def test_only_workspaces_that_say_so() -> None:
    lab = Lab(notes={})
    lab.says(ended())
    assert lab.tick() == []


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("lin-0", None),
        ("lin-7", None),
        ("lin-7", OWNER),  # one of those that a member makes beside the workspace's only pod
        ("lin-0", {**OWNER, "kind": "ReplicaSet"}),
        ("lin-0", {**OWNER, "apiVersion": "example.com/v1"}),
        ("lin-0", {**OWNER, "name": "ann"}),
        ("mine-0", OWNER),
    ],
)
def test_other_pods_stop_no_workspace(name: str, owner: dict[str, str] | None) -> None:
    """Members make pods with any name, owner and annotation: only a workspace's own pod stops it."""
    lab = Lab(name, owner=owner)
    lab.says(ended())
    assert lab.tick() == []


def test_only_the_leader_stops_workspaces() -> None:
    lab = Lab()
    lab.says(ended())
    lab.leads = False
    assert lab.tick() == []
    lab.leads = True
    assert lab.tick() == STOPPED


def test_what_failed_is_tried_again_and_what_is_refused_is_not() -> None:
    """A member can write the annotation into any pod: the account may scale workspaces only."""
    lab = Lab()
    lab.says(ended())
    lab.api.error = UnreachableError("refused")
    assert lab.tick() == lab.tick() == STOPPED
    lab.api.error = ApiError(403, "Forbidden", "no")
    assert lab.tick() == STOPPED
    assert lab.tick() == []
    lab.api.error = None
    lab.says(ended(ago=5))
    assert lab.tick() == STOPPED
    assert len(lab.reporter.notes) == 1


def test_a_pod_that_is_going_is_left_alone() -> None:
    lab = Lab()
    lab.says(ended())
    lab.world.items[lab.key]["metadata"]["deletionTimestamp"] = timestamp(NOW)
    lab.says(ended())
    assert lab.tick() == []
    lab.world.drop("vision", "lin-0")
    assert lab.tick() == []
