"""The clock of a job: no worker is more than a bound of steps ahead of the slowest (stale synchronous parallel).

Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013.
"""

from __future__ import annotations


class StepClock:
    """Steps that workers have completed. With a staleness of 0 they go in step, as in BSP."""

    def __init__(self) -> None:
        self._completed: dict[int, int] = {}
        self.advanced = 0
        """Counts up whenever a waiting worker may go on."""

    def begin(self, worker: int, step: int, staleness: int) -> int | None:
        """Return the step that a worker may begin, or None if it must wait and ask again.

        Steps count from 1. Step 0 joins: the worker begins with the slowest. A worker that asks for a step has
        completed those before.
        """
        if step == 0:
            joined = min(self._completed.values(), default=0)
            self._completed[worker] = joined
            return joined + 1
        before = min(self._completed.values(), default=0)
        self._completed[worker] = step - 1
        slowest = min(self._completed.values())
        self.advanced += slowest != before
        return step if step - 1 - slowest <= staleness else None

    def remove(self, worker: int) -> None:
        """Wait for a worker no more."""
        if self._completed.pop(worker, None) is not None:
            self.advanced += 1
