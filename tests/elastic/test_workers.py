"""Which slow workers are told to leave."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import pytest
from avactl_worker import messages as m
from avactl_worker.wire import Message

from avactl.contracts import names
from avactl.daemons.elastic.events import WorkerReplaced
from avactl.daemons.elastic.job import JobLedger
from avactl.daemons.elastic.service import MemberSession, Service
from avactl.daemons.elastic.state.snapshot import StateSnapshotError, dump, load
from avactl.daemons.elastic.state.store import StateStore
from avactl.daemons.elastic.workers import ElasticWorker, StragglerDetector, speed_shares
from tools.elastic import ElasticJob
from tools.waiting import patience

HOUR = 3600.0


class World:
    """Workers that do a task of ten records in `seconds` each, and what is decided about them."""

    def __init__(self, seconds: dict[str, float], least: int = 1, below: float = 0.5, after: float = 60.0) -> None:
        self.now = 0.0
        self.stragglers = StragglerDetector(least, below, after, clock=lambda: 1e9 + self.now)
        self.workers: dict[str, ElasticWorker] = {}
        self.seconds = seconds
        self.before: deque[WorkerReplaced] = deque(maxlen=16)
        for name in seconds:
            self.join(name)

    def join(self, name: str) -> None:
        number = len(self.workers) + round(self.now) * 1000 + 1
        self.workers[name] = ElasticWorker(number, name, number, 0.0, replaceable=name != "w0")

    def go(self, seconds: float, work: Callable[[ElasticWorker, float], None] | None = None) -> list[str]:
        """Let time pass; return the workers that were told to leave."""
        found = []
        for _ in range(round(seconds)):
            self.now += 1
            for name, worker in self.workers.items():
                if work is not None:
                    work(worker, self.seconds[name])
                elif self.now % 3 == 0:
                    worker.finished(10, self.seconds[name], 0)
            chosen = self.stragglers.look(self.workers.values(), self.workers.get, self.before, self.now)
            if chosen is not None:
                found.append(chosen.worker.name)
                worker = chosen.worker
                self.before.append(WorkerReplaced(worker.incarnation, 1e9 + self.now, chosen.share, worker.name))
        return found


def even(count: int, **slow: float) -> dict[str, float]:
    return {**{f"w{index}": 1.0 for index in range(count)}, **slow}


def test_a_worker_that_is_slow_for_a_while() -> None:
    world = World(even(4, w2=2.5))
    assert world.go(24 + 55) == []  # eight tasks, and a minute
    assert world.go(20) == ["w2"]
    assert world.before[0].share == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("seconds", "below", "after"),
    [
        (even(4, w2=1.9), 0.5, 60.0),
        (even(4, w2=2.5), 0.3, 60.0),
        (even(4, w2=2.5), 0.5, 1000.0),
        (even(4, w0=9.0), 0.5, 60.0),  # the leader
        (even(2, w1=9.0), 0.5, 60.0),  # which of two is the odd one?
    ],
)
def test_workers_that_stay(seconds: dict[str, float], below: float, after: float) -> None:
    assert World(seconds, below=below, after=after).go(300) == []


def test_some_long_tasks_make_no_worker_slow() -> None:
    """A checkpoint every few tasks, and a slow start."""
    world = World(even(4))

    def work(worker: ElasticWorker, seconds: float) -> None:
        long = worker.name == "w2" and (worker.tasks < 4 or worker.tasks % 3 == 0)
        worker.finished(10, 60.0 if long else seconds, 0)

    assert world.go(300, work) == []


def test_evaluation_is_not_compared() -> None:
    world = World(even(4))

    def work(worker: ElasticWorker, seconds: float) -> None:
        worker.finished(10, 9.0 if worker.name == "w2" else 1.0, None)

    assert world.go(300, work) == []
    assert speed_shares(world.workers.values()) == {}


def test_workers_with_other_data_are_not_compared() -> None:
    world = World(even(6, w3=9.0, w4=9.0, w5=9.0))

    def work(worker: ElasticWorker, seconds: float) -> None:
        worker.finished(10, seconds, int(seconds > 1))

    assert world.go(300, work) == []


def test_synchronous_workers_are_compared_by_what_they_say() -> None:
    """Their tasks take equally long, because all wait for the slowest."""
    world = World(even(4, w3=4.0))

    def work(worker: ElasticWorker, seconds: float) -> None:
        worker.finished(10, 4.0, 0)
        worker.said(1 / seconds)

    assert world.go(100, work) == ["w3"]


@pytest.mark.parametrize("pace", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_an_impossible_pace(pace: float) -> None:
    worker = ElasticWorker(1, "w", 1, 0.0)
    worker.said(pace)
    assert worker.rate() is None


def test_a_minimum_remains() -> None:
    assert World(even(4, w2=9.0), least=4).go(300) == []
    assert World(even(4, w2=9.0), least=3).go(300) == ["w2"]


def test_one_at_a_time_the_slowest_first() -> None:
    world = World(even(7, w2=4.0, w3=9.0))
    assert world.go(300) == ["w3"]
    del world.workers["w3"]
    assert world.go(200) == []
    world.seconds["w3"] = 1.0
    world.join("w3")
    assert world.go(10) == ["w2"]


def test_a_successor_that_does_not_come_is_waited_for_ten_minutes() -> None:
    world = World(even(7, w2=4.0, w3=9.0))
    assert world.go(300) == ["w3"]
    del world.workers["w3"]
    assert world.go(650) == ["w2"]


def test_a_slow_successor_is_replaced_after_an_hour() -> None:
    world = World(even(4, w3=9.0))
    assert world.go(100) == ["w3"]
    world.join("w3")
    assert world.go(HOUR - 200) == []
    assert world.go(300) == ["w3"]


def test_six_in_an_hour() -> None:
    world = World(even(30, **{f"w{index}": 9.0 for index in range(1, 11)}))
    found = []
    for _ in range(36):
        for name in world.go(100):
            found.append(name)
            world.seconds[name] = 1.0
            world.join(name)
    assert len(found) == len(set(found)) == 6
    assert world.go(200)


def service(path: Path) -> Service:
    stragglers = StragglerDetector(1, after=4.0, clock=lambda: 1e9)
    return Service(StateStore(path / "state", 0.0), 0.0, stragglers=stragglers)


def ask(service: Service, member: MemberSession, now: float, **content: Message) -> m.Answer:
    answer = service.handle(member, m.Request(id=1, **content), now)
    assert answer is not None
    assert answer.error is None, answer.error
    service.store.commit()
    return answer


def test_a_worker_is_told_also_by_the_next_master(tmp_path: Path) -> None:
    first = service(tmp_path)
    members = [MemberSession() for _ in range(4)]

    def join(of: Service) -> None:
        for number, member in enumerate(members):
            joining = m.Join(worker=f"w{number}", incarnation=number + 1, replaceable=number > 0)
            ask(of, member, 0.0, join=joining)

    def told(of: Service, now: float) -> list[str]:
        found = []
        for number, member in enumerate(members):
            beat = m.Heartbeat(pace=0.1 if number == 3 else 1.0)
            found.append(ask(of, member, now, heartbeat=beat).leave)
            of.expire(now)
        return found

    join(first)
    assert told(first, 1.0) == [""] * 4
    assert told(first, 3.0) == [""] * 4
    assert told(first, 8.0) == ["", "", "", "it works at 0.10 of the median speed"]
    first.store.close()  # nothing else is written
    again = service(tmp_path)
    assert [each.name for each in again.store.job.told_to_leave] == ["w3"]
    join(again)
    assert told(again, 1.0) == ["", "", "", "it works at 0.10 of the median speed"]
    again.store.rotate()
    again.store.close()
    third = service(tmp_path)
    members[3] = MemberSession()
    join(third)
    ask(third, members[3], 0.0, join=m.Join(worker="w3", incarnation=99, replaceable=True))
    assert told(third, 1.0) == [""] * 4
    assert told(third, 9.0) == [""] * 4
    third.store.close()


def test_the_copy_in_the_config_map_has_it_too() -> None:
    job = JobLedger()
    job.replace(job.join("w", 2**63 - 1, 0.0), 0.25, 1e9, 0.0)
    again, _ = load(dump(job, {}, full=False), 0.0)
    assert list(again.told_to_leave) == list(job.told_to_leave) == [WorkerReplaced(2**63 - 1, 1e9, 0.25, "w")]
    job.told_to_leave.append(WorkerReplaced(1, float("inf"), 0.25, "w"))
    with pytest.raises(StateSnapshotError):
        load(dump(job, {}, full=False), 0.0)


def test_the_library_and_the_compiler_mean_the_same_code() -> None:
    assert m.REPLACED == names.REPLACED_EXIT


HANGS = """
import os, sys, time
from unittest import mock
import avactl_worker
from avactl_worker import session
mock.patch.object(session, "_LEAVING", 0.5).start()
slow = os.environ["AVACTL_INDEX"] == "3"
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
data = avactl_worker.connect().dataset("train", 800, records_per_task=1, seed=1)
for number, task in enumerate(data):
    os.write(out, b"%d\\n" % task.start)
    time.sleep(0.25 if slow else 0.05)
    if slow and number == 12:
        time.sleep(600)
"""


def test_a_worker_that_hangs_is_ended(tmp_path: Path) -> None:
    """Its task is the only one that is done again."""
    with ElasticJob(tmp_path, 0, 0, 1, options=("--replace-stragglers", "1:0.5:1")) as job:
        command = [sys.executable, "-c", HANGS, str(job.tasks)]
        for index in range(4):
            more = {"AVACTL_MASTER": job.address, "AVACTL_WORKER": f"w{index}", "AVACTL_INDEX": str(index)}
            job.workers.append(job._start(command, more))
        assert [each.wait(patience()) for each in job.workers if each is not None] == [0, 0, 0, m.REPLACED], (
            job.log.read_text()
        )
        begun = Counter(map(int, job.tasks.read_text().split()))
        assert (len(begun), begun.total()) == (800, 801)
        (train,) = job.status()["datasets"]
        assert train["records"] == 800
