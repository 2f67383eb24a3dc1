"""Batches of a dataset for synchronous steps. A record counts when its step is in the state of all workers."""

from __future__ import annotations

from itertools import islice
from typing import Any, Iterator

from avactl_worker.dataset import Dataset, Reader


class Feed:
    """This worker's records, batch by batch, without waiting for the last ones of others."""

    def __init__(self, data: Dataset[Any], read: Reader[Any] | None) -> None:
        self._data, self._read = data, read or data.reader()
        self._records: Iterator[Any] | None = None
        self.batch: list[Any] = []
        """Records of the next step; empty if there are none for this worker."""
        self._last: list[Any] = []
        self._pending = 0
        self._metrics: dict[str, float] = {}

    def pull(self, count: int) -> None:
        """Fill the batch with at most `count` records. Reports what was committed, and waits for the master only."""
        while len(self.batch) < count:
            if self._records is None:
                self._records = self._data.stream(self._read, wait=False)
            found = list(islice(self._records, count - len(self.batch)))
            self.batch += found
            if len(self.batch) < count:
                self._records = None
                if not found:
                    return

    def any_batch(self) -> list[Any]:
        """Return records of any kind, for a worker that has none: the last batch, or a first record."""
        return self._last or self._data.first(self._read)

    def trained(self, metrics: dict[str, float]) -> None:
        """Note that the batch is in this worker's state."""
        self._pending += len(self.batch)
        if self.batch:
            self._metrics, self._last = metrics, self.batch
        self.batch = []

    def commit(self) -> None:
        """Count what was trained: all workers have it in their state."""
        if self._pending:
            self._data.trained(self._pending, **self._metrics)
        self._pending, self._metrics = 0, {}

    def close(self) -> None:
        """Report what was committed, and give the rest back."""
        self._data.give_back()
