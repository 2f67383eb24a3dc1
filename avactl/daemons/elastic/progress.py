"""Progress of one dataset: the epoch, the tasks that are done in it, and those to give next.

Tasks are known by their position in the order of the epoch. So the done tasks are nearly a prefix, and their bitmap is
small when compressed; in any order it has one bit a task, 125 kB for a million.
"""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avactl.daemons.elastic.definition import Definition, Task

MAX_METRICS = 16
"""Metrics of an epoch, by name."""
_MAX_EPOCHS = 100
"""Finished epochs whose results are kept."""
_ANY_BIT = re.compile(rb"[^\0]")


@dataclass(slots=True)
class EpochResult:
    """Exact counts of one epoch. Metrics are means over records."""

    epoch: int
    tasks: int = 0
    records: int = 0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sum of value × records, and the records, by metric."""

    def add(self, records: int, metrics: dict[str, float]) -> None:
        """Count a task."""
        self.tasks += 1
        self.records += records
        for name, value in metrics.items():
            if (name in self.sums or len(self.sums) < MAX_METRICS) and math.isfinite(value):
                total, weight = self.sums.get(name, (0.0, 0))
                self.sums[name] = total + value * records, weight + records

    def means(self) -> dict[str, float]:
        """Return the metrics."""
        return {name: total / weight for name, (total, weight) in self.sums.items() if weight}


class EpochProgress:
    """Tasks of a dataset: to do, given, done. Pure: no clock, no workers."""

    def __init__(self, definition: Definition, epoch: int = 0) -> None:
        self.definition = definition
        self.epoch = epoch
        """The epoch in progress, from 0; equal to the number of epochs when all are done."""
        self.history: deque[EpochResult] = deque(maxlen=_MAX_EPOCHS)
        self.total_records = 0
        """Records of all epochs so far, each counted once."""
        self._start()

    def _start(self) -> None:
        self.result = EpochResult(self.epoch)
        self._order: array[int] | None = None  # the memory of the one before is free first
        self._order = self.definition.order(self.epoch)
        size = -(-self.definition.tasks // 8)
        self._done = bytearray(size)
        self._asked = -1, Task(0, 0, 0)
        self.frontier = 0
        """Positions from here on were never given."""
        self._to_do = bytearray(size)
        """Bitmap of positions before the frontier that are to do: workers can make millions of them."""
        self._lowest = 0
        """No byte of `_to_do` before this one has a position."""

    # -- tasks -------------------------------------------------------------------------------------------------------

    def task(self, position: int) -> Task:
        """Return the task at a position of the epoch."""
        if position != self._asked[0]:  # a report asks twice
            index = position if self._order is None else self._order[position]
            self._asked = position, self.definition.task(index)
        return self._asked[1]

    def peek(self) -> int | None:
        """Return the position to give next, or None if all are given or done."""
        if match := _ANY_BIT.search(self._to_do, self._lowest):
            self._lowest = match.start()
            byte = self._to_do[self._lowest]
            return self._lowest * 8 + (byte & -byte).bit_length() - 1
        self._lowest = len(self._to_do)
        return self.frontier if self.frontier < self.definition.tasks else None

    def give(self, position: int) -> None:
        """Take a position out of those to do; one that was not to do stays as it is."""
        if position >= self.frontier:
            self._mark_skipped(self.frontier, position)
            self.frontier = position + 1
        else:
            self._to_do[position >> 3] &= ~(1 << (position & 7))

    def _mark_skipped(self, start: int, end: int) -> None:
        """Make the positions from `start` to `end` (exclusive) ones to do."""
        if start < end:
            bits = np.unpackbits(
                np.frombuffer(self._to_do, np.uint8, offset=start >> 3, count=(end + 7 >> 3) - (start >> 3)),
                bitorder="little",
            )
            bits[start & 7 : end - (start & ~7)] = 1
            self._to_do[start >> 3 : end + 7 >> 3] = np.packbits(bits, bitorder="little").tobytes()
            self._lowest = min(self._lowest, start >> 3)

    def put_back(self, position: int) -> None:
        """Make a position that was given one to do."""
        if not self.is_done(position):
            self._to_do[position >> 3] |= 1 << (position & 7)
            self._lowest = min(self._lowest, position >> 3)

    def is_done(self, position: int) -> bool:
        """Return True if the task at a position is done."""
        return bool(self._done[position >> 3] >> (position & 7) & 1)

    def complete(self, epoch: int, position: int, metrics: dict[str, float]) -> bool:
        """Count a task as done; False if it was already, or is of an earlier epoch. The last one ends the epoch."""
        if epoch != self.epoch or self.is_done(position):
            return False
        self.give(position)
        self._done[position >> 3] |= 1 << (position & 7)
        task = self.task(position)
        self.result.add(task.end - task.start, metrics)
        self.total_records += task.end - task.start
        if self.result.tasks == self.definition.tasks:
            self.history.append(self.result)
            self.epoch += 1
            self._start()
        return True

    # -- state -------------------------------------------------------------------------------------------------------

    def bitmap(self) -> bytes:
        """Return the done tasks, one bit a position, compressed."""
        return zlib.compress(bytes(self._done), 6)

    def header(self) -> dict[str, Any]:
        """Return everything else that a restarted master needs, as JSON."""
        return {
            "epoch": self.epoch,
            "frontier": self.frontier,
            "records": self.total_records,
            "result": _epoch_data(self.result),
            "history": [_epoch_data(each) for each in self.history],
        }

    @classmethod
    def restored(cls, definition: Definition, header: dict[str, Any], bitmap: bytes) -> EpochProgress:
        """Return the progress that `header` and `bitmap` were taken of; tasks that were given are to do.

        Raises ValueError if they do not belong to the definition.
        """
        size = -(-definition.tasks // 8)
        unpacker = zlib.decompressobj()
        try:
            done = unpacker.decompress(bitmap, size + 1)
        except zlib.error as error:
            raise ValueError(f"dataset {definition.name}: {error}") from None
        if len(done) != size:
            raise ValueError(f"dataset {definition.name}: the bitmap is not of {definition.tasks} tasks")
        progress = cls(definition, int(header["epoch"]))
        progress._done = bytearray(done)
        progress.frontier = int(header["frontier"])
        progress.total_records = int(header["records"])
        progress.result = _parse_epoch(header["result"])
        progress.history.extend(_parse_epoch(each) for each in header["history"])
        bits = np.unpackbits(np.frombuffer(done, np.uint8), count=definition.tasks, bitorder="little")
        if int(bits.sum()) != progress.result.tasks or bits[progress.frontier :].any():
            raise ValueError(f"dataset {definition.name}: the bitmap contradicts the counts")
        to_do = bits == 0
        to_do[progress.frontier :] = False
        progress._to_do = bytearray(np.packbits(to_do, bitorder="little").tobytes())
        return progress


def _epoch_data(result: EpochResult) -> dict[str, Any]:
    return {
        "epoch": result.epoch,
        "tasks": result.tasks,
        "records": result.records,
        "sums": {name: list(pair) for name, pair in result.sums.items()},
    }


def _parse_epoch(data: dict[str, Any]) -> EpochResult:
    sums = {str(name): (float(total), int(weight)) for name, (total, weight) in data["sums"].items()}
    return EpochResult(int(data["epoch"]), int(data["tasks"]), int(data["records"]), sums)
