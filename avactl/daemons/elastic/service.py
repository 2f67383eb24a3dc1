"""Answers of the master to each message of a worker. Knows no transport: a message in, an answer out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson
from avactl_worker import messages as m

from avactl.daemons.elastic import status
from avactl.daemons.elastic.clock import MAX_STEPS, BackupClock, StepClock
from avactl.daemons.elastic.definition import DefinitionError, check_definition
from avactl.daemons.elastic.job import LEASE, Assignment, JobError, Nothing, ReplacedError, TaskKey
from avactl.daemons.elastic.rounds import Rounds
from avactl.daemons.elastic.state.store import StateStore
from avactl.daemons.elastic.workers import ElasticWorker, StragglerDetector
from avactl.kube import logs

HEARTBEAT = 2.0
"""Seconds between two heartbeats of a worker."""
_SETTLE_TIME_S = 3.0
"""Seconds in which workers come back to a master whose state is not the newest, before it hands out tasks."""
_MAX_NAME_LENGTH = 253
"""Characters of a worker's name."""
_MAX_METRIC_LENGTH = 63
"""Characters of a metric's name."""
_MAX_REPORTS = 10_000
"""Reports in one message."""


WAITING = (("work",), ("clock", "gradient"), ("rendezvous", "watch", "store"), ("store",))
"""Requests that may have to wait, by the position in `Service.changes` of what they wait for."""


class RejoinError(Exception):
    """The worker's lease has ended: it must join again."""


class OverError(JobError):
    """A worker asked for the store of a round that has ended."""


@dataclass(slots=True)
class MemberSession:
    """The worker behind one stream."""

    worker: ElasticWorker | None = None
    waiting: Counter[str] = field(default_factory=Counter)
    """Number of requests that are not answered yet, by field."""


class Service:
    """The job and its store, for all workers."""

    def __init__(
        self,
        store: StateStore,
        now: float,
        settled: bool = True,
        staleness: int | None = None,
        gradients: int | None = None,
        stragglers: StragglerDetector | None = None,
        workers: int = 1,
    ) -> None:
        """`settled`: the state is the newest, and the tasks in it that no worker holds are free. `staleness`: bound of
        the clock in steps, whatever workers ask for. `gradients`: number of gradients of a step that count.
        `stragglers`: which slow workers leave; None: none. `workers`: number of those that the clock starts with."""
        self._staleness, self._stragglers = staleness, stragglers
        self.store, self.clock = store, StepClock(workers)
        self.durable = store.synced
        """Number of the last event that survives the loss of this master."""
        self._open = now if settled else now + _SETTLE_TIME_S
        # Clocks are not part of the state: workers say their steps again.
        self._clock_open = now if store.new and settled else now + _SETTLE_TIME_S
        self.backup = None if gradients is None else BackupClock(store.job, gradients, now)
        self.rounds = Rounds(self._clock_open)
        self.lost = 0
        """Workers whose lease has ended."""
        self.replaced = len(store.job.told_to_leave)
        """Workers that were told to leave because they are slow."""
        self._members: dict[int, MemberSession] = {}
        """The last stream of each worker."""

    def changes(self) -> tuple[int, int, int, int]:
        """Return values of which each changes whenever a request that waits may be answered: one of the same position
        in WAITING."""
        values = self.rounds.values
        job = self.store.job
        advanced = self.clock.advanced + job.gradients.advanced
        return job.available, advanced, self.rounds.changed, values.changed if values else 0

    # -- messages ----------------------------------------------------------------------------------------------------

    def handle(self, member: MemberSession, request: m.Request, now: float, waited: bool = False) -> m.Answer | None:
        """Return the answer to a request, or None if it must wait. `waited`: answer in any case.

        The store must be committed before the answer is sent. Raises RejoinError.
        """
        answer = m.Answer(id=request.id)
        try:
            if request.join is not None:
                answer.joined = self._join(member, request.join, now)
            else:
                worker = self._join_worker(member, now)
                if request.work is not None:
                    if not self._give_work(worker, request.work, answer, now, waited):
                        return None
                elif request.clock is not None:
                    if not self._answer_clock(member, worker, request.clock, answer, now):
                        return None
                elif request.gradient is not None:
                    if not self._answer_gradient(member, worker, request.gradient, answer, now):
                        return None
                elif request.register is not None:
                    answer.registered = self._register_datasets(request.register, now)
                elif request.resume is not None:
                    held = [_make_key(each) for each in request.resume.held]
                    self.store.job.resume(worker, held, map(_check_report, request.resume.finished[:_MAX_REPORTS]), now)
                    if self.backup is not None:
                        known = (_check_step(request.resume.begun), _check_step(request.resume.counted))
                        self.backup.resume(worker, *known, now)
                    elif request.resume.step:
                        # Others must not run ahead of a worker whose step began with the master before.
                        self.clock.begin(worker.index, request.resume.step, 0)
                elif request.rendezvous is not None:
                    return self._answer_rendezvous(worker, request.rendezvous, answer, now, waited)
                elif request.watch is not None:
                    answer.change = self._watch(worker, request.watch, now)
                    return answer if answer.change is not None else None
                elif request.store is not None:
                    answer.value = self._answer_store(request.store)
                    return answer if answer.value is not None else None
                elif request.finish is not None:
                    self.store.job.end(request.finish.step, now)
                    self.rounds.changed += 1
                elif request.heartbeat is not None:
                    worker.said(request.heartbeat.pace)
                    answer.leave = self.store.job.reason_to_leave(worker)
                elif request.leave is not None:
                    self.store.job.leave(worker, now)
                    self._remove_worker(worker, now)
        except (JobError, DefinitionError) as error:
            code = "over" if isinstance(error, OverError) else "refused"
            if isinstance(error, ReplacedError):
                code = "replaced"
            answer.error = m.Error(code=code, message=str(error))
        return answer

    def nothing(self, request: m.Request) -> m.Answer:
        """Return the answer to a request that has waited long enough."""
        answer = m.Answer(id=request.id)
        if request.rendezvous is not None:
            answer.change = m.Change(reason=self.rounds.reason())
        return answer

    def stamp(self, answer: m.Answer) -> m.Answer:
        """Add the numbers of the state's events to an answer, after the commit."""
        answer.sequence, answer.durable = self.store.sequence, self.durable
        return answer

    def _join_worker(self, member: MemberSession, now: float) -> ElasticWorker:
        worker = member.worker
        if worker is None or not self.store.job.current(worker):
            raise RejoinError
        worker.seen = now
        return worker

    def _join(self, member: MemberSession, join: m.Join, now: float) -> m.Joined:
        if not 1 <= len(join.worker) <= _MAX_NAME_LENGTH or not join.worker.isprintable():
            raise JobError(f"a worker's name has 1 to {_MAX_NAME_LENGTH} printable characters")
        job = self.store.job
        before = job.named(join.worker)
        worker = job.join(join.worker, join.incarnation, now)
        if before is not None and before is not worker:
            self._remove_worker(before, now)
        member.worker, worker.replaceable = worker, join.replaceable
        self._members[worker.index] = member
        self.rounds.connected(worker)
        logs.info("worker joined", name=worker.name, library=join.library[:50], workers=len(job.workers))
        gradients = 0 if self.backup is None else self.backup.count
        return m.Joined(lineage=self.store.lineage, heartbeat=HEARTBEAT, lease=LEASE, gradients=gradients)

    def _register_datasets(self, asked: m.Registration, now: float) -> m.Registered:
        job = self.store.job
        known = job.datasets.get(asked.name)
        if known is not None and known.definition.digest == asked.digest:
            return m.Registered()
        about = asked.definition
        if about is None:
            return m.Registered(definition_wanted=True)
        definition = check_definition(
            asked.name,
            asked.digest,
            about.counts,
            about.records_per_task,
            about.epochs,
            about.seed if about.shuffled else None,
            about.after,
            about.timeout,
        )
        try:
            job.register(definition, now)
        except DefinitionError:
            raise
        except ValueError as error:
            raise DefinitionError(f"dataset {asked.name} does not fit the saved state: {error}") from None
        logs.info(
            "dataset registered",
            name=definition.name,
            tasks=definition.tasks,
            records=definition.records,
            epochs=definition.epochs,
            after=definition.after,
        )
        return m.Registered()

    def _give_work(self, worker: ElasticWorker, work: m.Work, answer: m.Answer, now: float, waited: bool) -> bool:
        job = self.store.job
        if not waited:
            for report in work.finished[:_MAX_REPORTS]:
                key, metrics = _check_report(report)
                job.finish(worker, key, metrics, now)
            for each in work.returned:
                job.give_back(worker, _make_key(each), now)
        if not work.datasets:
            return True
        found = job.take(worker, work.datasets, now, work.wait) if now >= self._open else Nothing.YET
        if isinstance(found, Assignment):
            dataset, epoch, position = found.key
            answer.assignment = m.Assignment(
                task=m.TaskKey(dataset=dataset, epoch=epoch, position=position),
                file=found.task.file,
                start=found.task.start,
                end=found.task.end,
                evaluation=found.evaluation,
            )
            return True
        answer.finished = found is Nothing.MORE
        return answer.finished or not work.wait

    def _answer_clock(
        self, member: MemberSession, worker: ElasticWorker, clock: m.Clock, answer: m.Answer, now: float
    ) -> bool:
        if self.backup is not None:
            if clock.step and not clock.asked:
                raise JobError(
                    "this job has backup workers: before it pushes a gradient, the script must call `clock.counts()` "
                    "of the avactl-worker that belongs to the master's avactl, and push it only if that is true"
                )
            if now < self._open or self._members.get(worker.index) is not member:
                return False  # a request of a stream that broke must not speak for the worker
            answer.step = self.backup.begin(worker, _check_step(clock.step), now) or 0
            return answer.step > 0
        if now < self._clock_open and not clock.step:
            return False  # the slowest worker is not known yet
        staleness = clock.staleness if self._staleness is None else min(clock.staleness, self._staleness)
        step = self.clock.begin(worker.index, clock.step, staleness)
        if step is None or now < self._clock_open:
            return False
        answer.step = step
        return True

    def _answer_gradient(
        self, member: MemberSession, worker: ElasticWorker, asked: m.Gradient, answer: m.Answer, now: float
    ) -> bool:
        if self.backup is None:
            answer.gradient = 1
        elif now < self._open or self._members.get(worker.index) is not member:
            return False
        else:
            answer.gradient = 1 if self.backup.counts(worker, _check_step(asked.step), now) else 2
        return True

    def disconnected(self, member: MemberSession, now: float) -> None:
        """Note that a stream has ended."""
        worker = member.worker
        if worker is not None and self._members.get(worker.index) is member:
            del self._members[worker.index]
            self.rounds.disconnected(worker, now)

    def _remove_worker(self, worker: ElasticWorker, now: float) -> None:
        self.clock.remove(worker.index)
        if self.backup is not None:
            self.backup.advance(now)
        self.rounds.gone(worker, now)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _answer_rendezvous(
        self, worker: ElasticWorker, asked: m.Rendezvous, answer: m.Answer, now: float, waited: bool
    ) -> m.Answer | None:
        if self.store.job.ended is not None:
            answer.finished = True
            return answer
        answer.round = self.rounds.ask(worker, asked, now, waited)
        return answer if answer.round is not None else None

    def _watch(self, worker: ElasticWorker, watch: m.Watch, now: float) -> m.Change | None:
        if self.store.job.ended is not None:
            return m.Change(finished=True)
        return self.rounds.watch(worker, watch, now)

    def _answer_store(self, asked: m.Store) -> m.Value | None:
        """Return the answer to an operation on the store of a round, or None if it must wait."""
        values = self.rounds.values
        if values is None or asked.revision != self.rounds.revision:
            raise OverError(f"the store of round {asked.revision} is gone")
        key = asked.keys[0] if asked.keys else ""
        match asked.operation:
            case "set":
                values.set(key, asked.value)
                return m.Value()
            case "get":
                found = values.get(key)
                return None if found is None else m.Value(value=found, found=True)
            case "wait":
                return m.Value(found=True) if values.has(asked.keys) else None
            case "check":
                return m.Value(found=values.has(asked.keys))
            case "add":
                return m.Value(value=values.add(key, asked.value))
            case "compare":
                return m.Value(value=values.compare(key, asked.expected, asked.value))
            case "delete":
                return m.Value(found=values.delete(key))
            case "count":
                return m.Value(value=str(len(values)).encode())
        raise JobError(f"a round's store has no operation {asked.operation[:20]!r}")

    # -- time --------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Take the tasks of lost workers back, and choose slow ones that must leave."""
        for worker in self.store.job.expire(now):
            self._remove_worker(worker, now)
            self.lost += 1
            logs.warn("worker lost", name=worker.name, tasks=len(worker.held), silent=round(now - worker.seen, 1))

        self.rounds.advance(now)
        self._replace_stragglers(now)

    def _replace_stragglers(self, now: float) -> None:
        job, stragglers = self.store.job, self._stragglers
        if stragglers is None or job.ended is not None or job.complete():
            return
        found = stragglers.look(job.workers.values(), job.named, job.told_to_leave, now)
        if found is not None:
            job.replace(found.worker, found.share, stragglers.clock(), now)
            self.store.commit()  # what is logged stays decided
            self.replaced += 1
            logs.warn("worker replaced", name=found.worker.name, share=round(found.share, 3), workers=len(job.workers))

    def step(self) -> int:
        """Return the step of the job: by its clock, at the beginning of the synchronous round, or at its end."""
        if self.backup is not None:
            return self.store.job.gradients.step
        return max(self.clock.slowest(), self.rounds.step, self.store.job.ended or 0)

    def status(self, now: float) -> bytes:
        """Return the status as JSON."""
        found = status.collect_status(self.store.job, now, self.store.lineage)
        steps = {} if self.backup is None else {"gradients": self.backup.status()}
        return orjson.dumps({**found, "round": self.rounds.status(), **steps})


def _check_step(step: int) -> int:
    if step > MAX_STEPS:
        raise JobError(f"step {step}: {MAX_STEPS:,} are possible")
    return step


def _make_key(key: m.TaskKey | None) -> TaskKey:
    if key is None:
        raise JobError("a task without a key")
    return TaskKey(key.dataset, key.epoch, key.position)


def _check_report(report: m.Report) -> tuple[TaskKey, dict[str, Any]]:
    metrics = {
        each.name: each.value
        for each in report.metrics[:100]
        if 1 <= len(each.name) <= _MAX_METRIC_LENGTH and math.isfinite(each.value)
    }
    return _make_key(report.task), metrics
