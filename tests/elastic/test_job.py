"""The state of a job under workers and masters that come and go."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from avactl.daemons.elastic.definition import DefinitionError
from avactl.daemons.elastic.events import Event, TaskDone, TaskGiven, decode, encode
from avactl.daemons.elastic.job import LEASE, Assignment, JobLedger, Nothing, ReplacedError, TaskKey
from avactl.daemons.elastic.progress import EpochProgress
from avactl.daemons.elastic.state.snapshot import StateSnapshotError, dump, load
from tests.elastic.test_definition import definition
from tests.work import calls

TRAIN, VALID = definition([7, 0, 12], 3, epochs=3, seed=5), definition([4], 2, epochs=0, after="train", name="valid")


class Process:
    """A worker's process: what its library remembers."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name, self.incarnation = name, incarnation
        self.held: dict[TaskKey, Assignment] = {}
        self.finished: list[TaskKey] = []
        """Reports that a restored master may not know."""


class Cluster(RuleBasedStateMachine):
    """Workers die, vanish, are slow and repeat themselves; the master dies, and is restored from old states."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.processes, self.started = 0.0, dict[str, Process](), 0
        self.job, self.events = JobLedger(), list[Event]()
        self.computed: Counter[TaskKey] = Counter()

    @initialize()
    def register(self) -> None:
        self.start(JobLedger())
        self.saved = dump(self.job, {}, full=False)

    def process(self, name: str) -> Process:
        if name not in self.processes:
            self.started += 1
            self.processes[name] = Process(name, self.started)
        return self.processes[name]

    def step(self, name: str, report: bool = True) -> Assignment | Nothing:
        """Finish what a worker holds, and get the next task."""
        process = self.process(name)
        worker = self.job.join(name, process.incarnation, self.now)
        self.job.resume(worker, process.held, [(key, {}) for key in process.finished], self.now)
        for key in list(process.held):
            del process.held[key]
            self.computed[key] += 1
            if report:
                self.job.finish(worker, key, {"loss": 0.5}, self.now)
            process.finished.append(key)
        found = self.job.take(worker, ["train", "valid"], self.now)
        if isinstance(found, Assignment):
            process.held[found.key] = found
        return found

    names = st.sampled_from("abcd")

    @rule(name=names)
    def work(self, name: str) -> None:
        self.step(name)

    @rule(name=names)
    def lose_a_report(self, name: str) -> None:
        self.step(name, report=False)

    @rule(name=names)
    def lose_an_answer(self, name: str) -> None:
        process = self.process(name)
        worker = self.job.join(name, process.incarnation, self.now)
        self.job.take(worker, ["train", "valid"], self.now)

    @precondition(lambda self: self.processes)
    @rule(name=names)
    def kill(self, name: str) -> None:
        self.processes.pop(name, None)

    @rule(seconds=st.sampled_from([0.1, 3.0, LEASE + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.job.expire(self.now)

    def restored(self, state: bytes, events: list[Event]) -> JobLedger:
        job, _ = load(state, self.now)
        for event in events:
            job.apply(decode(encode(event)), self.now)
        return job

    def start(self, job: JobLedger) -> None:
        self.job, self.base, self.events = job, dump(job, {}), []
        self.job.record = self.events.append
        for each in (TRAIN, VALID):
            self.job.register(each, self.now)

    @rule()
    def restart_the_master(self) -> None:
        job = self.restored(self.base, self.events)
        assert dump(job, {}) == dump(self.job, {})
        self.start(job)

    @rule()
    def save(self) -> None:
        self.saved = dump(self.job, {}, full=False)

    @rule()
    def move_the_master(self) -> None:
        self.start(self.restored(self.saved, []))

    @invariant()
    def holders_and_workers_agree(self) -> None:
        for dataset in self.job.by_number:
            for position, holders in dataset.holders.items():
                assert holders
                assert not dataset.progress.is_done(position)
                assert all((dataset.number, position) in self.job.workers[each].held for each in holders)

    def teardown(self) -> None:
        if not self.job.datasets:
            return
        for _ in range(200):
            if self.step("e") is Nothing.MORE:
                break
            self.now += 3
            self.job.expire(self.now)
        assert self.job.complete()
        for name, (records, tasks) in {"train": (19, 7), "valid": (4, 2)}.items():
            progress = self.job.datasets[name].progress
            assert [(each.epoch, each.records, each.tasks) for each in progress.history] == [
                (epoch, records, tasks) for epoch in range(3)
            ]
            assert progress.total_records == 3 * records
        assert len(self.computed) == 3 * 9


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def make(*definitions: Any) -> JobLedger:
    job = JobLedger()
    for each in definitions:
        job.register(each, 0.0)
    return job


def take(job: JobLedger, worker: Any, now: float = 0.0) -> Assignment:
    found = job.take(worker, list(job.datasets), now)
    assert isinstance(found, Assignment)
    return found


def test_a_worker_that_is_silent_loses_its_tasks_to_others() -> None:
    job = make(definition([4], 2))
    slow, other = job.join("slow", 1, 0.0), job.join("other", 2, 0.0)
    first = take(job, slow)
    other.seen = LEASE + 1
    assert job.expire(LEASE + 1) == [slow]
    assert [take(job, other).key, take(job, other).key] == [first.key, TaskKey("train", 0, 1)]


def test_a_process_started_anew_frees_the_tasks_of_the_one_before_at_once() -> None:
    job = make(definition([4], 2))
    before = take(job, job.join("w", 1, 0.0))
    assert take(job, job.join("w", 2, 0.0)).key == before.key
    with pytest.raises(ReplacedError, match="give every process of the job a name of its own"):
        job.join("w", 1, 0.0)


def test_a_process_that_was_lost_does_not_come_back_after_its_successor() -> None:
    """The pod of an unreachable node is deleted, and another one gets its name; then the node is reachable again."""
    job = JobLedger()
    job.join("w", 1, 0.0)
    job.expire(LEASE + 1)
    assert job.join("w", 1, 20.0)  # nobody has taken its place
    job.expire(40.0)
    successor = job.join("w", 2, 50.0)
    with pytest.raises(ReplacedError):
        job.join("w", 1, 51.0)
    assert job.current(successor)
    copy, _ = load(dump(job, {}, full=True), 52.0)
    assert copy.join("w", 2, 52.0).incarnation == 2
    copy.join("w", 3, 53.0)
    with pytest.raises(ReplacedError):
        copy.join("w", 2, 54.0)


def test_a_straggler_shares_its_task_at_the_end_of_the_epoch_and_the_first_answer_counts() -> None:
    job = make(definition([6], 2, epochs=2))
    slow, fast = job.join("slow", 1, 0.0), job.join("fast", 2, 0.0)
    straggling = take(job, slow)
    for now in (0.5, 1.0):
        job.finish(fast, take(job, fast, now).key, {}, now + 0.5)
    assert job.take(fast, ["train"], 1.9) is Nothing.YET
    assert job.take(fast, ["train"], 2.5, idle=False) is Nothing.YET  # in synchronous training, twice in the sum
    again = take(job, fast, 2.5)
    assert again.key == straggling.key
    assert job.take(job.join("third", 3, 0.0), ["train"], 60.0) is Nothing.YET
    assert job.finish(slow, straggling.key, {"loss": 1.0}, 3.0)
    assert not job.finish(fast, again.key, {"loss": 9.0}, 3.5)
    [result] = job.datasets["train"].progress.history
    assert (result.tasks, result.records, result.means()) == (3, 6, {"loss": 1.0})


def test_a_task_that_takes_too_long_is_given_to_a_second_worker() -> None:
    job = make(definition([100], 2, timeout=60.0))
    stuck, other = job.join("stuck", 1, 0.0), job.join("other", 2, 0.0)
    first = take(job, stuck)
    assert take(job, other, 59.0).key != first.key
    assert take(job, other, 60.0).key == first.key
    assert take(job, other, 61.0).key != first.key


def test_evaluation_and_training_take_turns() -> None:
    job = make(definition([4], 2, epochs=2), definition([2], 1, epochs=0, after="train", name="valid"))
    worker, found = job.join("w", 1, 0.0), []
    while (got := job.take(worker, ["train", "valid"], 0.0)) is not Nothing.MORE:
        assert isinstance(got, Assignment)
        found.append((got.key.dataset, got.key.epoch, got.evaluation))
        job.finish(worker, got.key, {}, 0.0)
    epoch = [("train", 0, False)] * 2 + [("valid", 0, True)] * 2
    assert found == epoch + [(name, 1, evaluation) for name, _, evaluation in epoch]


def test_an_unequal_registration_is_refused() -> None:
    job = make(definition([4], 2))
    other = definition([4], 2, epochs=5)
    object.__setattr__(other, "digest", b"e" * 32)
    with pytest.raises(DefinitionError, match="this worker says epochs 5 instead of 1: all workers must register"):
        job.register(other, 0.0)
    restored, _ = load(dump(job, {}, full=False), 0.0)
    with pytest.raises(DefinitionError, match="with other files or settings"):
        restored.register(other, 0.0)
    with pytest.raises(DefinitionError, match="`after` names nothing, which is not registered"):
        job.register(definition([1], 1, epochs=0, after="nothing", name="valid"), 0.0)


def test_the_state_of_a_million_tasks_is_small_at_any_moment_of_a_random_order() -> None:
    job = make(definition([1_000_000], 1, epochs=2, seed=3))
    progress = job.datasets["train"].progress
    order = list(range(1_000_000))
    random.Random(1).shuffle(order)
    worker = job.join("w", 1, 0.0)
    largest = 0
    for count, position in enumerate(order[:-1]):
        if count % 100_000 == 0:
            restored = EpochProgress.restored(progress.definition, progress.header(), progress.bitmap())
            assert restored.result == progress.result
            largest = max(largest, len(dump(job, {}, full=False)))
        if count == 0:
            job._give_task(0, 999_999, worker, 0.0)  # the frontier is at the end: any position may be done
        progress.complete(0, position, {})
    assert 100_000 < largest < 200_000


def test_a_million_tasks_in_the_order_of_an_epoch_have_a_tiny_state() -> None:
    progress = make(definition([1_000_000], 1, seed=3)).datasets["train"].progress
    for position in range(500_000):
        progress.complete(0, position, {})
    assert len(progress.bitmap()) < 1_000


def test_a_step_costs_the_same_with_many_tasks() -> None:
    def cost(tasks: int) -> int:
        job = make(definition([tasks], 1, seed=1))
        worker = job.join("w", 1, 0.0)
        found = take(job, worker)

        def step() -> None:
            job.finish(worker, found.key, {}, 0.0)
            take(job, worker)

        return calls(step)

    assert cost(1_000_000) <= cost(100) + 5


def test_damaged_states_are_refused() -> None:
    job = make(definition([100], 2))
    job.finish(job.join("w", 1, 0.0), TaskKey("train", 0, 3), {}, 0.0)
    whole = dump(job, {"a": 1})
    assert load(whole, 0.0)[1] == {"a": 1}
    for damaged in (whole[:-1], whole[:-1] + b"x", b"", b"1234"):
        with pytest.raises(StateSnapshotError):
            load(damaged, 0.0)
    newer = whole[4:].replace(b'"version":1', b'"version":9')
    with pytest.raises(StateSnapshotError, match="version 9; this avactl reads version 1"):
        load(zlib.crc32(newer).to_bytes(4, "little") + newer, 0.0)


def test_events_that_do_not_fit_are_refused() -> None:
    job = make(definition([100], 2))
    for event in (TaskGiven(9, 0, 1), TaskGiven(0, 0, 7), TaskDone(0, 2**31, 1, 0, {})):
        with pytest.raises(ValueError, match="does not fit"):
            job.apply(event, 0.0)
    for raw in (b"", b"\x09", b"\x03\x00", encode(TaskDone(0, 1, 1, 0, {"loss": 1.0}))[:-9]):
        with pytest.raises(ValueError, match=r"event|metric"):
            decode(raw)


def test_the_definition_survives_the_journal() -> None:
    counts = np.random.default_rng(0).integers(0, 1000, 10_000).tolist()
    from avactl.daemons.elastic.events import Registered

    event = decode(encode(Registered(definition(counts, 7, seed=2))))
    assert isinstance(event, Registered)
    assert event.definition == definition(counts, 7, seed=2)
    assert event.definition.counts.tolist() == counts
