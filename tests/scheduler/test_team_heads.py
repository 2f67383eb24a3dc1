"""Large jobs that have waited long, behind which younger pods of their team wait (`holdAfter`)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from avactl.kube.timestamps import unix_time
from avactl.scheduler.objects.wait_reasons import WaitReason
from tests.scheduler.memory import Memory

AFTER = 600
START = unix_time("2026-01-01T00:00:00Z")


@dataclass
class Cluster:
    """Two machines, time that the test moves, and pods that start and end."""

    memory: Memory = field(default_factory=lambda: Memory(machines=2, hold_after=AFTER))
    now: int = 0

    def __post_init__(self) -> None:
        self.memory.time = lambda: START + self.now

    def at(self, seconds: int) -> None:
        """Set the time, and let the scheduler decide."""
        self.now = seconds
        self.memory.clock = seconds
        self.settle()

    def settle(self) -> None:
        self.memory.settle()
        while woken := sorted(self.memory.cache.tables.waits.woken):
            self.memory.cache.tables.waits.woken.clear()
            for key in woken:
                if key in self.memory.queue.units:
                    self.memory.queue.push(self.memory.queue.units[key])
            self.memory.settle()

    def pod(self, name: str, gpus: int = 1, team: str = "vision", **more: object) -> None:
        self.memory.clock = self.now
        self.memory.pod(team, name, gpus, **more)  # type: ignore[arg-type]
        self.settle()

    def gang(self, name: str = "big", members: int = 2) -> None:
        self.memory.clock = self.now
        self.memory.gang("vision", name, members, 8)
        self.settle()

    def end(self, name: str, team: str = "vision") -> None:
        self.memory.drop(team, name)
        self.settle()

    def runs(self, name: str) -> bool:
        return name in self.memory.where()


def full() -> Cluster:
    """A cluster full of small pods, and a gang that is younger."""
    cluster = Cluster()
    for number in range(16):
        cluster.pod(f"s{number}")
    cluster.at(10)
    cluster.gang()
    return cluster


def test_younger_pods_wait_behind_a_gang_that_has_waited_long() -> None:
    cluster = full()
    cluster.at(AFTER - 60)
    cluster.end("s0")
    cluster.pod("early")
    assert cluster.runs("early")
    cluster.at(AFTER + 60)
    cluster.end("s1")
    cluster.pod("late")
    assert not cluster.runs("late")
    assert cluster.memory.said["late"].startswith("waits behind vision/big, which is older")
    assert cluster.memory.reasons["late"] is WaitReason.TURN
    for name in ("early", *(f"s{number}" for number in range(2, 16))):
        cluster.end(name)
    assert cluster.runs("big-0")
    cluster.at(AFTER + 120)
    assert not cluster.runs("late")  # it waits for GPUs like anybody else now
    assert cluster.memory.said["late"].startswith("fits on none of 2 nodes")
    cluster.end("big-0")
    assert cluster.runs("late")


def test_a_hold_ends_and_rests_as_long() -> None:
    cluster = full()
    cluster.at(AFTER + 60)
    cluster.end("s0")
    cluster.pod("late")
    assert not cluster.runs("late")
    cluster.at(2 * AFTER + 61)
    assert cluster.runs("late")
    cluster.end("s1")
    cluster.pod("later")
    assert cluster.runs("later")
    cluster.at(3 * AFTER + 120)
    cluster.end("s2")
    cluster.pod("latest")
    assert not cluster.runs("latest")


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({}, True),
        ({"priority": -1}, True),
        ({"priority": 1}, False),
        ({"gpus": 0}, False),
        ({"team": "ads"}, False),
        ({"priorityClassName": "avactl-serving"}, False),
    ],
)
def test_who_waits(more: dict[str, object], waits: bool) -> None:
    cluster = full()
    cluster.at(AFTER + 60)
    cluster.end("s0")
    cluster.pod("x", **more)  # type: ignore[arg-type]
    assert cluster.runs("x") is not waits


def test_a_gang_that_is_gone_or_never_fits_holds_nobody_up() -> None:
    cluster = full()
    cluster.gang("huge", 3)
    cluster.memory.drop("vision", "big-0", "big-1")
    cluster.at(AFTER + 60)
    cluster.end("s0")
    cluster.pod("x")
    assert cluster.runs("x")
    other = full()
    other.at(AFTER + 60)
    other.end("s0")
    other.pod("x")
    assert not other.runs("x")
    other.memory.drop("vision", "big-0", "big-1")
    other.settle()
    assert other.runs("x")


def test_without_the_setting_nothing_is_held() -> None:
    memory = Memory(machines=2)
    for number in range(16):
        memory.pod("vision", f"s{number}", 1)
    memory.gang("vision", "big", 2, 8)
    memory.settle()
    memory.drop("vision", "s0")
    memory.pod("vision", "x", 1)
    memory.settle()
    assert "x" in memory.where()


def _free(memory: Memory) -> int:
    used = sum(
        int(memory.items[key]["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu", 0))
        for key in memory.items
        if memory.items[key]["spec"].get("nodeName")
    )
    return 16 - used


@pytest.mark.parametrize("seed", range(6))
def test_others_are_not_slower_than_the_bound(seed: int) -> None:
    """In random traffic: other teams never wait while there is room, and younger pods not longer than a hold."""
    rng = random.Random(seed)
    cluster = Cluster()
    memory = cluster.memory
    began: dict[str, int] = {}
    held: dict[str, int] = {}
    for step in range(150):
        cluster.at(60 * step)
        for key in list(memory.items):
            team, _, name = key.partition("/")
            if memory.items[key]["spec"].get("nodeName") and rng.random() < 0.08:
                cluster.end(name, team)
        for team in ("vision", "ads"):
            if rng.random() < 0.7:
                cluster.pod(f"{team}-{step}", 1, team)
        if step % 25 == 3:
            cluster.gang(f"big{step}")
        waiting = [key for key, item in memory.items.items() if not item["spec"].get("nodeName")]
        room = _free(memory)
        assert not room or not any(key.startswith("ads/") for key in waiting), f"step {step}"
        for key in waiting:
            name = key.partition("/")[2]
            if memory.reasons.get(name) is WaitReason.TURN and name.startswith("vision-"):
                began.setdefault(name, cluster.now)
                held[name] = cluster.now - began[name]
            else:
                began.pop(name, None)
    assert held, "no pod was held up"
    assert max(held.values()) <= AFTER
