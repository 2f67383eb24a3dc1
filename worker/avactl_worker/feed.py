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
        self._applied: list[Any] | None = None
        """Records of a step in the state, until it is known to be in that of all workers."""
        self._last: list[Any] = []
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

    def settle(self, included: bool, metrics: dict[str, float]) -> None:
        """Say if the last batch is in the state, as far as is known: the next round may have another one."""
        if included and self._applied is None:
            self._last = self.batch or self._last
            self._applied, self._metrics, self.batch = self.batch, metrics, []
        elif not included and self._applied is not None:
            self.batch, self._applied = self._applied + self.batch, None

    def commit(self) -> None:
        """Count the last batch: all workers have it in their state."""
        if self._applied:
            self._data.trained(len(self._applied), **self._metrics)
        self._applied = None

    def close(self) -> None:
        """Report what was committed, and give the rest back."""
        self._data.give_back()
