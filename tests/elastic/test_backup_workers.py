"""Backup workers: the first gradients of a step count."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from avactl_worker import messages as m

from avactl.contracts.names import PROGRESS
from avactl.daemons.elastic.events import Fate, Gradient, Stepped, decode, encode
from avactl.daemons.elastic.service import MemberSession, Service
from avactl.daemons.elastic.state.snapshot import dump, load
from avactl.daemons.elastic.state.store import StateStore
from avactl.daemons.elastic.status import Summary
from avactl.workbench.jobs.progress import read_progress
from avactl.workbench.jobs.state import TrainingJobState, unusual_conditions
from tools.elastic import ElasticJob, environment
from tools.waiting import patience, wait_until

COUNTS, DROPPED = 1, 2


class Workers:
    """Workers of a master without a network, and the parameter server that they push to."""

    def __init__(self, folder: Path, names: list[str], gradients: int) -> None:
        self._path, self._gradients, self._last = folder / "state", gradients, 0
        self.service = Service(StateStore(self._path, 0.0), 0.0, gradients=gradients)
        self.members: dict[str, MemberSession] = {}
        self._started, self.now = 0, 0.0
        self.processes: dict[str, int] = {}
        """Number of each worker's process."""
        self.begun, self.counted = Counter[str](), Counter[str]()
        for name in names:
            self.replace(name)

    def send(self, name: str, **content: object) -> m.Answer | None:
        self._last += 1
        answer = self.service.handle(self.members[name], m.Request(id=self._last, **content), self.now)
        self.service.store.commit()
        return answer

    def connect(self, name: str) -> None:
        """Connect a worker, anew or again."""
        self.members[name] = MemberSession()
        answer = self.send(name, join=m.Join(worker=name, incarnation=self.processes[name], library="0"))
        assert answer
        assert answer.joined
        assert answer.joined.gradients == self._gradients
        self.send(name, resume=m.Resume(begun=self.begun[name], counted=self.counted[name]))

    def replace(self, name: str) -> None:
        """Start a process of this name; if there is one, it was killed."""
        self._started += 1
        self.processes[name] = self._started
        del self.begun[name], self.counted[name]
        self.connect(name)

    def kill_master(self) -> None:
        """Start another master with the state of this one; all workers connect to it."""
        self.service.store.close()
        self.service = Service(StateStore(self._path, 0.0), 0.0, gradients=self._gradients)
        for name in self.members:
            self.connect(name)

    def tick(self, name: str, step: int) -> int:
        """Return the step that a worker may begin; 0 if it waits."""
        answer = self.send(name, clock=m.Clock(step=step, asked=True))
        if answer is None:
            return 0
        assert answer.error is None, answer.error
        self.begun[name] = answer.step
        return answer.step

    def counts(self, name: str, step: int) -> int:
        answer = self.send(name, gradient=m.Gradient(step=step))
        assert answer
        if answer.gradient == COUNTS:
            self.counted[name] = step
        return answer.gradient

    def status(self) -> dict[str, int]:
        assert self.service.backup
        return self.service.backup.status()


def test_the_first_gradients_count_and_late_workers_go_on_with_the_others(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "b", "late"], gradients=2)
    assert [job.tick(name, 0) for name in ("a", "b", "late")] == [1, 1, 1]
    assert [job.counts(name, 1) for name in ("a", "b")] == [COUNTS, COUNTS]
    assert job.tick("a", 2) == 0  # b has not pushed yet
    assert job.tick("b", 2) == 2
    assert job.tick("a", 2) == 2
    assert [job.counts(name, 2) for name in ("a", "b")] == [COUNTS, COUNTS]
    assert [job.tick(name, 3) for name in ("a", "b")] == [0, 3]
    assert job.counts("late", 1) == DROPPED
    assert job.counts("late", 1) == DROPPED  # its connection broke, and it asks again
    assert job.tick("late", 2) == 3
    assert job.status() == {"step": 3, "of": 2, "counted": 0, "dropped": 1}


def test_the_place_of_a_lost_worker_goes_to_a_late_one(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "b", "late"], gradients=2)
    for name in ("a", "b", "late"):
        job.tick(name, 0)
    assert [job.counts(name, 1) for name in ("a", "b", "late")] == [COUNTS, COUNTS, DROPPED]
    assert [job.tick(name, 2) for name in ("a", "late")] == [0, 0]
    before = job.service.changes()
    job.send("b", leave=m.Leave())
    assert job.service.changes() != before  # wakes those that wait
    assert job.tick("a", 2) == 0
    assert job.tick("late", 2) == 1
    assert job.counts("late", 1) == COUNTS
    assert job.tick("late", 2) == 2
    assert job.tick("a", 2) == 2


def test_a_worker_that_was_silent_takes_its_place_again(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "silent", "late"], gradients=2)
    for name in ("a", "silent", "late"):
        job.tick(name, 0)
    assert [job.counts(name, 1) for name in ("a", "silent")] == [COUNTS, COUNTS]
    job.now = 5.0
    assert [job.tick("a", 2), job.counts("late", 1), job.tick("late", 2)] == [0, DROPPED, 0]
    job.now = 9.0
    job.service.expire(job.now)
    assert job.tick("late", 2) == 1
    job.connect("silent")
    assert [job.counts("late", 1), job.counts("silent", 1)] == [DROPPED, COUNTS]
    assert job.tick("silent", 2) == 2


def test_a_worker_that_comes_again_does_not_count_twice_in_a_step(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "b", "c"], gradients=2)
    for name in ("a", "b", "c"):
        job.tick(name, 0)
    assert job.counts("a", 1) == COUNTS
    assert job.tick("a", 2) == 0
    job.replace("a")
    assert job.tick("a", 0) == 0
    assert job.counts("c", 1) == COUNTS
    assert job.tick("c", 2) == 2
    assert job.tick("a", 0) == 2


def test_a_killed_master_knows_whose_gradients_count(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "b", "c", "d"], gradients=3)
    for name in job.members:
        job.tick(name, 0)
    assert [job.counts(name, 1) for name in ("a", "b")] == [COUNTS, COUNTS]
    assert job.tick("b", 2) == 0
    del job.members["a"], job.members["b"]  # they are slower to come back than the others
    job.kill_master()
    assert [job.counts(name, 1) for name in ("c", "d")] == [COUNTS, DROPPED]
    assert [job.tick(name, 2) for name in ("c", "d")] == [0, 0]
    job.connect("a")
    assert job.tick("a", 2) == 2
    assert job.status() == {"step": 2, "of": 3, "counted": 0, "dropped": 1}


def test_a_master_without_state_goes_on_with_the_step_of_the_workers(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "b", "late"], gradients=2)
    job.begun.update(a=7, b=7, late=5)
    job.counted.update(a=7)
    for name in ("late", "a", "b"):
        job.connect(name)
    assert job.counts("late", 5) == DROPPED
    assert job.counts("b", 7) == COUNTS
    assert [job.counts(name, 7) for name in ("late", "a")] == [DROPPED, COUNTS]


def test_a_script_that_does_not_ask_is_refused(tmp_path: Path) -> None:
    """A worker library before backup workers, too: it leaves the field out."""
    job = Workers(tmp_path, ["a", "b"], gradients=1)
    assert job.tick("a", 0) == 1
    answer = job.send("a", clock=m.Clock(step=2))
    assert answer
    assert answer.error
    assert answer.error.message.startswith("this job has backup workers: before it pushes a gradient, the script must")
    answer = job.send("a", clock=m.Clock(step=2**60, asked=True))
    assert answer
    assert answer.error
    assert answer.error.message == f"step {2**60}: 9,007,199,254,740,992 are possible"


def test_owners_see_how_many_gradients_were_dropped(tmp_path: Path) -> None:
    job = Workers(tmp_path, ["a", "late"], gradients=1)
    for name in ("a", "late"):
        job.tick(name, 0)
    assert [job.counts(name, 1) for name in ("a", "late")] == [COUNTS, DROPPED]
    store = job.service.store
    restored, _ = load(dump(store.job, store.about(), full=False), 0.0)
    for state in (store.job, restored):
        progress = read_progress({"annotations": {PROGRESS: Summary("run").text(state)}})
        assert progress
        assert progress.master.dropped == 1
        shown = TrainingJobState(
            namespace="research",
            name="net",
            team="research",
            state="running",
            why="",
            roles=[],
            workers=2,
            least=2,
            most=2,
            gpus=0.0,
            created="",
            started="",
            ended="",
            failures=0,
            progress=progress,
            members=[],
            run="run",
            leader="worker",
            expires=None,
        )
        assert unusual_conditions(shown, datetime.now(UTC)) == ["1 gradient of late workers dropped"]


def test_events_in_the_journal() -> None:
    for event in (Stepped(2**40), Gradient(3, 2, Fate.PUSHED)):
        assert decode(encode(event)) == event
    with pytest.raises(ValueError, match="is not a valid Fate"):
        decode(encode(Gradient(3, 2, Fate.PUSHED))[:-1] + b"\x09")


@pytest.mark.parametrize(("workers", "backup", "seed"), [(3, 1, 1), (8, 2, 2), (8, 0, 3), (5, 4, 4), (16, 3, 5)])
def test_random_speeds_and_kills(tmp_path: Path, workers: int, backup: int, seed: int) -> None:
    """Each step gets the gradients of all but `backup` workers: one more per worker that was killed as it pushed."""
    chance = random.Random(seed)
    names = [f"worker-{index}" for index in range(workers)]
    job = Workers(tmp_path, names, workers - backup)
    step = dict.fromkeys(names, 0)
    doing = dict.fromkeys(names, "tick")
    speed = {name: chance.choice((1, 1, 1, 4)) for name in names}
    pushed: defaultdict[int, list[str]] = defaultdict(list)
    unsure = Counter[tuple[str, int]]()
    drops: set[tuple[str, int, int]] = set()
    # In the second half, as many workers as there are backups are dead.
    for half in range(2):
        until, alive = 100 * (half + 1), names if not half else names[backup:]
        for name in set(names) - set(alive):
            unsure[name, step[name]] += doing[name] in ("push", "pushed")
            job.send(name, leave=m.Leave())
            del job.members[name]
        turns = 0
        while max(step.values()) < until:
            turns += 1
            assert turns < 1_000 * workers, "deadlock"
            if chance.random() < 0.01:
                name = chance.choice(alive)
                unsure[name, step[name]] += doing[name] in ("push", "pushed")
                job.replace(name)
                step[name], doing[name] = 0, "tick"
            if chance.random() < 0.005:
                job.kill_master()
            if chance.random() < 0.01:
                job.connect(chance.choice(alive))
            name = chance.choices(alive, [speed[each] for each in alive])[0]
            match doing[name]:
                case "tick" | "pushed":
                    doing[name] = "tick"
                    begun = job.tick(name, step[name] + 1 if step[name] else 0)
                    if begun:
                        assert begun >= step[name]
                        for each in range(1, begun):
                            assert len(set(pushed[each])) >= workers - backup
                        turns *= begun <= max(step.values())
                        step[name], doing[name] = begun, "compute"
                case "compute":
                    counts = job.counts(name, step[name]) == COUNTS
                    if not counts:
                        drops.add((name, job.processes[name], step[name]))
                    doing[name] = "push" if counts else "tick"
                case "push":
                    pushed[step[name]].append(name)
                    doing[name] = "pushed"
    for number in range(1, 200):
        again = sum(unsure[name, number] for name in names)
        assert workers - backup <= len(set(pushed[number])) <= len(pushed[number]) <= workers - backup + again
        for name, times in Counter(pushed[number]).items():
            assert times <= 1 + unsure[name, number]
    assert job.status()["dropped"] == len(drops)
    assert bool(drops) == bool(backup)


PART = """
import os, sys, time
import avactl_worker

steps, pause, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
out = os.open(log, os.O_WRONLY | os.O_APPEND)
with avactl_worker.connect() as master:
    clock = master.clock()
    while clock.tick() <= steps:
        time.sleep(pause)
        if clock.counts():
            os.write(out, b"%s %d\\n" % (master.worker.encode(), clock.step))
"""


def test_steps_of_processes_with_a_straggler_when_workers_and_the_master_are_killed(tmp_path: Path) -> None:
    steps, log = 150, tmp_path / "pushed"
    log.touch()
    with ElasticJob(tmp_path, 0, 1, 1, options=("--gradients", "3")) as job:

        def start(index: int) -> subprocess.Popen[bytes]:
            words = (str(steps), "0.03" if index == 3 else "0.01", str(log))
            more = {"AVACTL_MASTER": job.address, "AVACTL_WORKER": f"worker-{index}"}
            return subprocess.Popen([sys.executable, "-c", PART, *words], env={**environment(), **more})

        processes = [start(index) for index in range(4)]
        kills = 0
        try:
            part = 0

            def logged() -> bool:
                return len(log.read_text().splitlines()) >= 3 * steps * part / 4

            for part in range(1, 4):
                wait_until(logged, timeout=300.0, details=lambda: job.log.read_text()[-4000:])
                if part != 2:
                    job.kill_master()
                if part != 1:
                    processes[1].kill()
                    processes[1].wait()
                    processes[1] = start(1)
                    kills += 1
            for each in processes[:3]:
                assert each.wait(patience(300)) == 0
            dropped = job.status()["gradients"]["dropped"]
            assert processes[3].wait(patience(300)) == 0
        finally:
            for each in processes:
                each.kill()
                each.wait()
    pushed = Counter(line.split()[1] for line in log.read_text().splitlines())
    assert sorted(map(int, pushed)) == list(range(1, steps + 1))
    assert min(pushed.values()) == 3
    assert sum(pushed.values()) <= 3 * steps + kills  # a worker may have been killed as it pushed
    assert dropped > 0
