"""Concurrent passes over objects, with a limit for each namespace so that no tenant delays the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from time import monotonic

from avactl.kube import logs

Work = Callable[[str], Awaitable[None]]


class Passes:
    """The running passes of a daemon. `parallel`: maximum number of passes of one namespace at a time.

    A pass may take long because of a team's queries or objects. Without a limit for each namespace, the passes of one
    team could delay those of all others.
    """

    def __init__(self, wake: Callable[[], None], parallel: int) -> None:
        """`wake` is called after a pass during which another one was requested, because the object has changed."""
        self._wake = wake
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(parallel))
        self._active: dict[tuple[Work, str], bool] = {}
        self._begun: dict[tuple[Work, str], float] = {}

    def begin(self, group: asyncio.TaskGroup, work: Work, key: str, namespace: str) -> None:
        """Begin a pass over one object as a task of `group`, unless one is still running."""
        each = work, key
        if each in self._active:
            self._active[each] = True
            return
        self._active[each] = False

        async def run() -> None:
            try:
                async with self._turns[namespace]:
                    self._begun[each] = monotonic()
                    await work(key)
            except Exception as error:  # a defect with one object must not stop the others
                logs.error("pass failed", object=key, error=repr(error)[:2000])
            finally:
                self._begun.pop(each, None)
                if self._active.pop(each):
                    self._wake()

        group.create_task(run())

    def longest(self) -> float:
        """Return the seconds since the oldest running pass started; 0 if there is none."""
        return monotonic() - min(self._begun.values(), default=monotonic())
