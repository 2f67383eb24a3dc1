"""A worker as the master knows it, and the choice of slow workers that are replaced."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from avactl.daemons.elastic.events import WorkerReplaced

_NEWEST_WEIGHT = 0.2
"""Weight of the last task in a worker's speed."""
_SAMPLES, _ENOUGH = 16, 8
"""Tasks whose median is compared with other workers, at most and at least: one that takes long, by a checkpoint or a
slow start, makes no worker slow."""
_MIN_PEERS = 3
"""Workers that are compared, at least."""
_LOOK_INTERVAL_S = 5.0
"""Seconds between two comparisons, at most."""
_SECONDS_PER_HOUR = 3600.0
_PER_HOUR = 6
"""Replaced workers of a job in an hour; each name at most once."""
_SUCCESSOR_TIMEOUT_S = 600.0
"""Seconds in which no other worker is replaced, unless the successor of the last one joins before."""
REMEMBERED = 16
"""Replacements that the state holds."""
_MAX_SPEED = 1e12


@dataclass(slots=True)
class ElasticWorker:
    """A process of the job. A process that is started again is another worker with the same name."""

    index: int
    name: str
    incarnation: int
    """A random number, by which a process is told from one of the same name before."""
    seen: float
    """Time of its last message."""
    held: set[tuple[int, int]] = field(default_factory=set)
    """Number of the dataset and position of each task that it holds."""
    tasks: int = 0
    records: int = 0
    speed: float = 0.0
    """Records per second, smoothed; 0 if unknown."""
    replaceable: bool = False
    """True if it leaves when it is told to."""
    pace: float = 0.0
    """Synchronous steps per second of its own work, as it says; 0 if it does not."""
    slow_since: float | None = None
    _dataset: int = -1
    _speeds: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Records per second of its last tasks, all of one dataset."""

    def finished(self, records: int, seconds: float | None, dataset: int | None) -> None:
        """Count a task that took `seconds`, or an unknown time. `dataset`: its number; None for evaluation."""
        self.tasks += 1
        self.records += records
        if seconds:
            speed = records / seconds
            self.speed = speed if not self.speed else (1 - _NEWEST_WEIGHT) * self.speed + _NEWEST_WEIGHT * speed
            if dataset is None:
                return
            if dataset != self._dataset:
                self._dataset = dataset
                self._speeds.clear()
            self._speeds.append(speed)

    def said(self, pace: float) -> None:
        """Note its pace, as it says."""
        self.pace = pace if math.isfinite(pace) and 0 < pace < _MAX_SPEED else 0.0

    def rate(self) -> tuple[int, float] | None:
        """Return what may be compared, and with whom: the number of the dataset, -1 for steps. None: too few tasks."""
        if self.pace:
            return -1, self.pace
        return (self._dataset, median(self._speeds)) if len(self._speeds) >= _ENOUGH else None


def speed_shares(workers: Iterable[ElasticWorker]) -> dict[int, float]:
    """Return the speed of workers as a share of the median, by index; only where enough of them do the same."""
    groups: dict[int, dict[int, float]] = {}
    for worker in workers:
        if (found := worker.rate()) is not None:
            groups.setdefault(found[0], {})[worker.index] = found[1]
    result: dict[int, float] = {}
    for rates in groups.values():
        if len(rates) >= _MIN_PEERS:
            middle = median(rates.values())
            result |= {index: rate / middle for index, rate in rates.items()}
    return result


class Slowest(NamedTuple):
    """A worker to replace."""

    worker: ElasticWorker
    share: float


@dataclass(slots=True)
class StragglerDetector:
    """Chooses workers that are far slower than the others, and have been for a while."""

    least: int
    """Workers that must remain."""
    below: float = 0.5
    """Share of the median speed."""
    after: float = 60.0
    """Seconds for which a worker must be slow."""
    clock: Callable[[], float] = time.time
    """Unix time, which outlives the master."""
    _next: float = 0.0

    def look(
        self,
        workers: Collection[ElasticWorker],
        named: Callable[[str], ElasticWorker | None],
        before: Sequence[WorkerReplaced],
        now: float,
    ) -> Slowest | None:
        """Return the worker to replace now; None if there is none. `before`: replacements so far."""
        if now < self._next:
            return None
        self._next = now + min(_LOOK_INTERVAL_S, self.after / 4)
        found: list[Slowest] = []
        compared = speed_shares(workers)
        for worker in workers:
            share = compared.get(worker.index, 1.0)
            if share >= self.below:
                worker.slow_since = None
            elif worker.slow_since is None:
                worker.slow_since = now
            elif now - worker.slow_since >= self.after and worker.replaceable:
                found.append(Slowest(worker, share))
        unix = self.clock()
        recent = [each for each in before if abs(unix - each.at) < _SECONDS_PER_HOUR]
        if len(workers) <= self.least or len(recent) >= _PER_HOUR:
            return None
        if any(abs(unix - each.at) < _SUCCESSOR_TIMEOUT_S and _is_awaited(each, named(each.name)) for each in recent):
            return None
        names = {each.name for each in recent}
        return min((each for each in found if each.worker.name not in names), key=lambda each: each.share, default=None)


def _is_awaited(replaced: WorkerReplaced, worker: ElasticWorker | None) -> bool:
    """Return True until another process has joined with the name."""
    return worker is None or worker.incarnation == replaced.incarnation
