"""Clocks of a job: bounded staleness, and synchronous steps with backup workers.

Sources: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013; Chen et al.,
Revisiting Distributed Synchronous SGD, 2016 (backup workers: the first gradients of a step count).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from avactl.daemons.elastic.events import Fate, Gradient, Stepped
from avactl.daemons.elastic.workers import ElasticWorker

MAX_STEPS = 2**53
"""Steps of a job."""


class StepClock:
    """Steps that workers have completed. With a staleness of 0 they go in step, as in BSP."""

    def __init__(self, workers: int = 1) -> None:
        """`workers`: number of workers that must have joined before the first of them begins."""
        self._workers = workers
        self._started = False
        self._completed: dict[int, int] = {}
        self.advanced = 0
        """Counts up whenever a waiting worker may go on."""

    def begin(self, worker: int, step: int, staleness: int) -> int | None:
        """Return the step that a worker may begin, or None if it must wait and ask again.

        Steps count from 1. Step 0 joins: the worker begins with the slowest. A worker that asks for a step has
        completed those before, so that the clock has started, maybe with a master before this one.
        """
        if step == 0:
            joined = self._completed.setdefault(worker, min(self._completed.values(), default=0))
            if not self._started and len(self._completed) >= self._workers:
                self._started = True
                self.advanced += 1
            return joined + 1 if self._started else None
        self._started = True
        before = min(self._completed.values(), default=0)
        self._completed[worker] = step - 1
        slowest = min(self._completed.values())
        self.advanced += slowest != before
        return step if step - 1 - slowest <= staleness else None

    def slowest(self) -> int:
        """Return the steps that all workers have completed."""
        return min(self._completed.values(), default=0)

    def remove(self, worker: int) -> None:
        """Wait for a worker no more."""
        if self._completed.pop(worker, None) is not None:
            self.advanced += 1


class Gradients:
    """The step in progress, and the workers whose gradients count in it. Part of the job's state."""

    def __init__(
        self, step: int = 1, counted: Iterable[str] = (), pending: Iterable[str] = (), dropped: int = 0
    ) -> None:
        self.step = step
        self.counted = set(counted)
        """Names of workers."""
        self.pending = set(pending)
        """Those of `counted` whose gradients may not be pushed yet."""
        self.dropped = dropped
        """Gradients of all steps that did not count."""
        self._late: dict[str, int] = {}
        """By worker, the last step for which its gradient was dropped."""
        self.advanced = 0
        """Counts up whenever a waiting worker may go on."""

    def header(self, full: bool) -> dict[str, Any]:
        """Return the arguments of the constructor. Without `full` no workers: they say it again."""
        found: dict[str, Any] = {"step": self.step, "dropped": self.dropped}
        return {**found, "counted": sorted(self.counted), "pending": sorted(self.pending)} if full else found

    def begin(self, step: int) -> None:
        """Begin a step."""
        self.step = step
        self.counted.clear()
        self.pending.clear()
        self.advanced += 1

    def note(self, step: int, worker: str, fate: Fate) -> None:
        """Note a gradient. It is dropped once, even if its worker did not get the answer and asks again."""
        if fate is Fate.COUNTED:
            self.counted.add(worker)
            self.pending.add(worker)
        elif fate is Fate.PUSHED:
            self.pending.discard(worker)
        elif self._late.get(worker) != step:
            self._late[worker] = step
            self.dropped += 1

    def lost(self, worker: str) -> None:
        """Free the place of a worker that may not have pushed its gradient."""
        self._late.pop(worker, None)
        if worker in self.pending:
            self.pending.discard(worker)
            self.counted.discard(worker)
            self.advanced += 1


class _Job(Protocol):
    """A job, as far as the clock needs it."""

    gradients: Gradients

    def clock(self, event: Gradient | Stepped, now: float) -> None:
        """Make an event of the clock part of the state."""


class BackupClock:
    """Synchronous steps, each of which ends with its first gradients: the workers that come later are the backup."""

    def __init__(self, job: _Job, count: int, now: float) -> None:
        self._job, self.count = job, count
        self.advance(now)  # a journal may end between the last gradient of a step and the next step

    def begin(self, worker: ElasticWorker, step: int, now: float) -> int | None:
        """Return the step that a worker may begin, or None if it must wait and ask again.

        `step` follows the worker's last one; 0 joins. It has pushed its gradient if that counts.
        """
        state = self._job.gradients
        if worker.name in state.pending and (step == 0 or step > state.step):
            self._job.clock(Gradient(state.step, worker.index, Fate.PUSHED), now)
            self.advance(now)
        # In a step that has its gradients, computing another one is in vain.
        return None if worker.name in state.counted or len(state.counted) >= self.count else state.step

    def counts(self, worker: ElasticWorker, step: int, now: float) -> bool:
        """Return True if the worker's gradient of a step counts; its place is free again if the worker is lost."""
        state = self._job.gradients
        if step == state.step and worker.name in state.counted:
            return worker.name in state.pending
        found = step == state.step and len(state.counted) < self.count
        self._job.clock(Gradient(step, worker.index, Fate.COUNTED if found else Fate.DROPPED), now)
        return found

    def resume(self, worker: ElasticWorker, begun: int, counted: int, now: float) -> None:
        """Take over what a worker knows of a master before: the last step that began, and whose gradient counts."""
        state = self._job.gradients
        if begun > state.step:
            self._job.clock(Stepped(begun), now)
        if counted == state.step and worker.name not in state.counted:
            self._job.clock(Gradient(counted, worker.index, Fate.COUNTED), now)

    def advance(self, now: float) -> None:
        """Begin the next step if all gradients of this one are pushed."""
        state = self._job.gradients
        if len(state.counted) >= self.count and not state.pending:
            self._job.clock(Stepped(state.step + 1), now)

    def status(self) -> dict[str, int]:
        """Return the step, how many of its gradients count, and how many of all were dropped."""
        state = self._job.gradients
        return {"step": state.step, "of": self.count, "counted": len(state.counted), "dropped": state.dropped}
