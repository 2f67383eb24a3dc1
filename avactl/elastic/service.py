"""Answers of the master to each message of a worker. Knows no transport: a message in, an answer out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import orjson
from avactl_worker import messages as m

from avactl.elastic import status
from avactl.elastic.clock import StepClock
from avactl.elastic.definition import DefinitionError, checked
from avactl.elastic.job import LEASE, Assignment, JobError, Nothing, ReplacedError, TaskKey
from avactl.elastic.store import Store
from avactl.elastic.workers import Worker
from avactl.kube import logs

HEARTBEAT = 2.0
"""Seconds between two heartbeats of a worker."""
_SETTLE = 3.0
"""Seconds in which workers come back to a master whose state is not the newest, before it hands out tasks."""
_NAME = 253
"""Characters of a worker's name."""
_METRIC = 63
"""Characters of a metric's name."""
_REPORTS = 10_000
"""Reports in one message."""


class RejoinError(Exception):
    """The worker's lease has ended: it must join again."""


@dataclass(slots=True)
class Member:
    """The worker behind one stream."""

    worker: Worker | None = None
    waiting: set[str] = field(default_factory=set)
    """Requests that are not answered yet, by field; one of each at most."""


class Service:
    """The job and its store, for all workers."""

    def __init__(self, store: Store, now: float, settled: bool = True) -> None:
        """`settled`: the state is the newest, and the tasks in it that nobody holds are free."""
        self.store, self.clock = store, StepClock()
        self.durable = store.synced
        """Number of the last event that survives the loss of this master."""
        self._open = now if settled else now + _SETTLE
        # Clocks are not part of the state: workers say their steps again.
        self._clock_open = now if store.new and settled else now + _SETTLE

    @property
    def changes(self) -> tuple[int, int]:
        """A value that changes whenever a request that waits may be answered."""
        return self.store.job.available, self.clock.advanced

    # -- messages ----------------------------------------------------------------------------------------------------

    def handle(self, member: Member, request: m.Request, now: float, waited: bool = False) -> m.Answer | None:
        """Return the answer to a request, or None if it must wait. `waited`: answer in any case.

        The store must be committed before the answer is sent. Raises RejoinError.
        """
        answer = m.Answer(id=request.id)
        try:
            if request.join is not None:
                answer.joined = self._join(member, request.join, now)
            else:
                worker = self._worker(member, now)
                if request.work is not None:
                    if not self._work(worker, request.work, answer, now, waited):
                        return None
                elif request.clock is not None:
                    if not self._clock(worker, request.clock, answer, now):
                        return None
                elif request.register is not None:
                    answer.registered = self._register(request.register, now)
                elif request.resume is not None:
                    held = [_key(each) for each in request.resume.held]
                    self.store.job.resume(worker, held, map(_report, request.resume.finished[:_REPORTS]), now)
                elif request.leave is not None:
                    self._gone(worker)
                    self.store.job.leave(worker, now)
        except (JobError, DefinitionError) as error:
            code = "replaced" if isinstance(error, ReplacedError) else "refused"
            answer.error = m.Error(code=code, message=str(error))
        return answer

    def stamp(self, answer: m.Answer) -> m.Answer:
        """Add the numbers of the state's events to an answer, after the commit."""
        answer.sequence, answer.durable = self.store.sequence, self.durable
        return answer

    def _worker(self, member: Member, now: float) -> Worker:
        worker = member.worker
        if worker is None or not self.store.job.current(worker):
            raise RejoinError
        worker.seen = now
        return worker

    def _join(self, member: Member, join: m.Join, now: float) -> m.Joined:
        if not 1 <= len(join.worker) <= _NAME or not join.worker.isprintable():
            raise JobError(f"a worker's name has 1 to {_NAME} printable characters")
        worker = self.store.job.join(join.worker, join.incarnation, now)
        member.worker = worker
        logs.info("worker joined", name=worker.name, library=join.library[:50], workers=len(self.store.job.workers))
        return m.Joined(lineage=self.store.lineage, heartbeat=HEARTBEAT, lease=LEASE)

    def _register(self, asked: m.Registration, now: float) -> m.Registered:
        job = self.store.job
        known = job.datasets.get(asked.name)
        if known is not None and known.definition.digest == asked.digest:
            return m.Registered()
        about = asked.definition
        if about is None:
            return m.Registered(definition_wanted=True)
        definition = checked(
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
            "dataset registered", name=definition.name, tasks=definition.tasks, records=definition.records,
            epochs=definition.epochs, after=definition.after,
        )  # fmt: skip
        return m.Registered()

    def _work(self, worker: Worker, work: m.Work, answer: m.Answer, now: float, waited: bool) -> bool:
        job = self.store.job
        if not waited:
            for report in work.finished[:_REPORTS]:
                key, metrics = _report(report)
                job.finish(worker, key, metrics, now)
            for each in work.returned:
                job.give_back(worker, _key(each), now)
        if not work.datasets:
            return True
        found = job.take(worker, work.datasets, now) if now >= self._open else Nothing.YET
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

    def _clock(self, worker: Worker, clock: m.Clock, answer: m.Answer, now: float) -> bool:
        if now < self._clock_open and not clock.step:
            return False  # the slowest worker is not known yet
        step = self.clock.begin(worker.index, clock.step, clock.staleness)
        if step is None or now < self._clock_open:
            return False
        answer.step = step
        return True

    def _gone(self, worker: Worker) -> None:
        self.clock.remove(worker.index)

    # -- time --------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Take the tasks of lost workers back."""
        for worker in self.store.job.expire(now):
            self._gone(worker)
            logs.warn("worker lost", name=worker.name, tasks=len(worker.held), silent=round(now - worker.seen, 1))

    def status(self, now: float) -> bytes:
        """Return the status as JSON."""
        return orjson.dumps(status.collect(self.store.job, now, self.store.lineage))


def _key(key: m.TaskKey | None) -> TaskKey:
    if key is None:
        raise JobError("a task without a key")
    return TaskKey(key.dataset, key.epoch, key.position)


def _report(report: m.Report) -> tuple[TaskKey, dict[str, Any]]:
    metrics = {
        each.name: each.value
        for each in report.metrics[:100]
        if 1 <= len(each.name) <= _METRIC and math.isfinite(each.value)
    }
    return _key(report.task), metrics
