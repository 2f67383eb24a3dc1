"""Which workers to test with each other, and which of them are at fault. No I/O.

As in DLRover's network check: neighbours are tested in pairs; a worker whose pair fails is tested again with a healthy
one, and one that fails twice is at fault. Source: dlrover/python/master/elastic_training/rdzv_manager.py.
"""

from __future__ import annotations

from statistics import median_low
from typing import Mapping, NamedTuple, Sequence

_FRUITLESS = 4
"""Rounds in which nobody passes, each in other pairs, before the tests stop."""
_COMPARED = 3
"""Fewest workers whose times are compared."""


class Result(NamedTuple):
    """The outcome of one test for one worker."""

    seconds: float = 0.0
    error: str = ""
    """Empty if it passed."""


SILENT = Result(error="no answer")


class Diagnosis:
    """What the tests have shown. Workers are numbered by their index."""

    def __init__(self, below: float = 0.5) -> None:
        """`below`: share of the median speed below which a worker is slow."""
        self._below = below
        self._passed: set[int] = set()
        self._failures: dict[int, int] = {}
        self._times: dict[int, list[float]] = {}
        self._slow_tests: set[int] = set()
        self._fruitless = 0
        self._round = 0
        self.faulty: dict[int, str] = {}
        """Workers at fault, with the error of their last test."""
        self.error = ""
        """The last error of any test."""

    @property
    def stuck(self) -> bool:
        """True if nobody passes, whoever the partner is."""
        return self._fruitless >= _FRUITLESS

    def forget(self, index: int) -> None:
        """Drop what is known of a worker: its pod is another one now."""
        self._passed.discard(index)
        self._slow_tests.discard(index)
        for table in (self._failures, self._times, self.faulty):
            table.pop(index, None)
        self._fruitless = 0

    def groups(self, present: Sequence[int]) -> list[list[int]]:
        """Return the groups of the next round, or none if the tests are over. No worker is in two groups."""
        untested = [each for each in present if each not in self._passed and each not in self.faulty]
        healthy = sorted((each for each in present if each in self._passed), key=self._best)
        if untested and healthy:
            turn = self._round % len(healthy)
            return [list(pair) for pair in zip(untested, healthy[turn:] + healthy[:turn])]
        if untested:
            return [] if self.stuck or self.faulty else self._among(untested)
        again = [each for each in self.slow() if each not in self._slow_tests]
        slow = self.slow()
        return [list(pair) for pair in zip(again, (each for each in healthy if each not in slow))]

    def _among(self, untested: list[int]) -> list[list[int]]:
        """Pair workers with each other, in other pairs after each round without success."""
        count, turn = len(untested), self._fruitless
        if turn == 2:
            half = count // 2
            order = [untested[place // 2 + place % 2 * half] for place in range(2 * half)]
        else:
            first = 2 if turn == 3 else turn
            order = untested[first:] + untested[:first]
        found = [order[start : start + 2] for start in range(0, len(order), 2)]
        if len(found) > 1 and len(found[-1]) == 1:
            last = found.pop()
            if not turn:
                found[-1] += last
        return found

    def record(self, groups: Sequence[Sequence[int]], results: Mapping[int, Result]) -> None:
        """Take the results of a round. Workers without a result have not answered."""
        self._round += 1
        anyone = False
        for group in groups:
            told = {each: results.get(each, SILENT) for each in group}
            if not any(result.error for result in told.values()):
                anyone = True
                # A test takes as long as its slowest worker, although the others may be done before.
                taken = max(result.seconds for result in told.values())
                for each in group:
                    self._pass(each, taken)
                continue
            silent = [each for each in group if told[each] is SILENT]
            trusted = {each for each in group if each in self._passed and each not in silent}
            for each in group:
                self._fail(each, group, told, silent, trusted - {each})
        if anyone:
            self._fruitless = 0
        elif not self._passed:
            self._fruitless += 1

    def _pass(self, index: int, seconds: float) -> None:
        if index in self._passed:
            self._slow_tests.add(index)
        self._passed.add(index)
        self._times.setdefault(index, []).append(seconds)

    def _fail(
        self, index: int, group: Sequence[int], told: Mapping[int, Result], silent: Sequence[int], trusted: set[int]
    ) -> None:
        own = told[index]
        self.error = next((each.error for each in told.values() if each.error and each is not SILENT), own.error)
        if index in self._passed and not trusted and index not in silent and len(group) > 1:
            return  # a healthy worker, tested with one that is not known to be
        self._passed.discard(index)
        self._failures[index] = self._failures.get(index, 0) + 1
        # Without a healthy partner, it is not known which of the two is at fault: unless one does not answer at all.
        certain = bool(trusted) or index in silent or len(group) == 1
        if certain and self._failures[index] >= 2:
            self.faulty[index] = own.error or self.error

    def _best(self, index: int) -> float:
        return min(self._times[index])

    def slow(self) -> dict[int, float]:
        """Return the healthy workers that are slow, with their shares of the median speed."""
        times = {each: self._best(each) for each in self._passed if each in self._times}
        if len(times) < _COMPARED:
            return {}
        middle = median_low(times.values())  # of two pairs, the faster one
        return {each: middle / taken for each, taken in sorted(times.items()) if taken * self._below > middle}

    def seconds(self) -> float | None:
        """Return the median of the workers' times; None without any."""
        times = [self._best(each) for each in self._passed if each in self._times]
        return median_low(times) if times else None
