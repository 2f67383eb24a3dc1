"""Datasets as workers see them: the tasks that the master hands out, and their records."""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from typing import Any, Callable, Generic, Iterable, Iterator, Sequence, TypeVar

from avactl_worker import messages as m
from avactl_worker.session import Session

R = TypeVar("R")
Reader = Callable[[Any, int, int], Iterable[R]]
"""Called with a file, and the first and the last record (exclusive); returns these records."""


class Task:
    """Records `start` to `end` (exclusive) of `file`. `len(task)` is their number."""

    def __init__(self, dataset: str, epoch: int, position: int, file: Any, start: int, end: int, evaluation: bool):
        self.dataset, self.epoch, self.position = dataset, epoch, position
        self.file, self.start, self.end, self.evaluation = file, start, end, evaluation
        self.metrics: dict[str, float] = {}

    def __len__(self) -> int:
        return self.end - self.start

    def __repr__(self) -> str:
        return f"Task({self.dataset}, epoch {self.epoch}, {self.file}: {self.start}-{self.end})"

    def report(self, **metrics: float) -> None:
        """Send metrics with the task's result; the master averages them over the records of an epoch."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def _key(self) -> m.TaskKey:
        return m.TaskKey(dataset=self.dataset, epoch=self.epoch, position=self.position)

    def _result(self) -> m.Report:
        metrics = [m.Metric(name=name, value=value) for name, value in self.metrics.items()]
        return m.Report(task=self._key(), metrics=metrics)


class Dataset(Generic[R]):
    """A dataset of the job. Each of its records is trained once an epoch, by one of the workers.

    Iterate over it (tasks), over `records()` or over `batches()`; each ends when all epochs are done. Breaking out of
    a loop gives the rest back.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        files: Sequence[tuple[Any, int]],
        records_per_task: int,
        epochs: int,
        seed: int | None,
        after: str,
        timeout: float,
        read: Reader[R] | None,
    ) -> None:
        self.name, self._session, self._read = name, session, read
        self._files = [file for file, _ in files]
        self._counts = [count for _, count in files]
        self._with: list[Dataset[Any]] = [self]
        self.finished = False
        """True when all epochs are done."""
        self.epoch = 0
        """Epoch of the last task, from 0."""
        self._open: deque[tuple[Task, int]] = deque()
        """Tasks that are not reported, each with the number of records pulled up to its end."""
        self._ahead: Task | None = None
        self._pulled = self._trained = self._in_hand = 0
        """Records that were pulled, that are trained, and that the script's loop has since then."""
        self._metrics: dict[str, float] = {}
        definition = m.Definition(
            counts=self._counts,
            records_per_task=records_per_task,
            epochs=epochs,
            shuffled=seed is not None,
            seed=seed or 0,
            after=after,
            timeout=timeout,
        )
        digest = hashlib.sha256(definition.encode())
        for file in self._files:
            raw = str(file).encode()
            digest.update(struct.pack("<I", len(raw)) + raw)
        session.register(name, digest.digest(), definition)

    # -- iterators ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()

    def tasks(self, *evaluations: Dataset[Any]) -> Iterator[Task]:
        """Yield tasks. A task is done when the next one is asked for.

        With evaluations, which follow this dataset's epochs, their tasks come too: `task.evaluation` is True.
        """
        self._with = [self, *evaluations]
        while True:
            task = self._next(self._take_all(), wait=True)
            if task is None:
                return
            self._push(task)
            self._in_hand = len(task)
            try:
                yield task
            except GeneratorExit:
                self.give_back()
                raise
            self._trained, self._in_hand = self._pulled, 0

    def records(self, read: Reader[R] | None = None) -> Iterator[R]:
        """Yield records. A record is trained when the next one is asked for.

        `read` is called with a file, and the first and the last record (exclusive) of it. Default: the dataset's own.
        """
        for each in self.batches(1, read):
            yield each[0]

    def batches(self, size: int, read: Reader[R] | None = None) -> Iterator[list[R]]:
        """Yield lists of `size` records, of one or more tasks; the last ones of an epoch may be shorter.

        A batch is trained when the next one is asked for.
        """
        try:
            for _ in self.passes():
                for batch in _batched(self.stream(read), size):
                    self._in_hand = len(batch)
                    yield batch
                    self._in_hand = 0
                    self.trained(len(batch))
        except GeneratorExit:
            self.give_back()
            raise

    def passes(self) -> Iterator[int]:
        """Yield the epoch of each pass of `stream()`, until all epochs are done; waits for the next epoch if need be.

        What was pulled in the passes before counts as trained.
        """
        while True:
            self._ahead = self._next(self._take_all(), wait=True)
            if self._ahead is None:
                return
            self._push(self._ahead)
            yield self._ahead.epoch

    def reader(self) -> Reader[R]:
        """Return the dataset's function that reads records. Raises ValueError if there is none."""
        if self._read is None:
            raise ValueError(f"dataset {self.name}: give a function `read(file, start, end)`")
        return self._read

    def first(self, read: Reader[R]) -> list[R]:
        """Return a record of the dataset."""
        file = next(file for file, count in zip(self._files, self._counts) if count)
        return list(read(file, 0, 1))

    def stream(self, read: Reader[R] | None = None, wait: bool = True) -> Iterator[R]:
        """Yield records of one pass: until there are no more in this epoch for this worker.

        For loaders that read ahead: a task is done when `trained` has counted all of its records. Without `wait`, it
        ends also if others have the last tasks.
        """
        reader = read or self.reader()
        while True:
            task, self._ahead = self._ahead, None
            if task is None:
                # With records in the loader, the last tasks of the epoch would wait for each other.
                task = self._next(self._take_trained(), wait=wait and not self._open)
                if task is None:
                    return
                self._push(task)
            count = 0
            for record in reader(task.file, task.start, task.end):
                count += 1
                if count > len(task):
                    break
                yield record
            if count != len(task):
                self.give_back()
                found = f"over {len(task)}" if count > len(task) else count
                raise ValueError(
                    f"{self.name}: read({task.file!r}, {task.start}, {task.end}) returned {found} records "
                    f"instead of {len(task)}"
                )

    def offsets(self) -> dict[Any, int]:
        """Return the number of records before each file."""
        found, before = {}, 0
        for file, count in zip(self._files, self._counts):
            found[file] = before
            before += count
        return found

    def trained(self, records: int, **metrics: float) -> None:
        """Count records of `stream()` as trained, in the order in which they came. Tasks of these are done.

        Metrics go with the next task that is done.
        """
        self._trained = min(self._trained + records, self._pulled)
        self._metrics.update({name: float(value) for name, value in metrics.items()})
        if self._session.leaves_between_tasks():
            self.give_back()
            self._session.depart()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the tasks that the script has trained, and the master does not know as done, for a checkpoint of it.

        What the loop has in hand counts as trained: save at the end of its body.
        """
        done = [task._key() for task, end in self._open if end <= self._trained + self._in_hand]
        return {"epoch": self.epoch, "trained": [(key.dataset, key.epoch, key.position) for key in done]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Report what the restored parameters were trained with."""
        keys = [m.TaskKey(dataset=name, epoch=epoch, position=position) for name, epoch, position in state["trained"]]
        self._session.give_back([m.Report(task=key) for key in keys], [])

    def finish(self) -> None:
        """Report what the loop has in hand as trained, before the script ends in it."""
        self._trained, self._in_hand = min(self._trained + self._in_hand, self._pulled), 0
        self._session.give_back(self._take_trained(), [])

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _next(self, finished: list[m.Report], wait: bool) -> Task | None:
        names = [each.name for each in self._with]
        assignment, self.finished = self._session.work(names, finished, [], wait)
        if assignment is None:
            return None
        key = assignment.task or m.TaskKey()
        owner = next(each for each in self._with if each.name == key.dataset)
        self.epoch = key.epoch
        return Task(
            key.dataset,
            key.epoch,
            key.position,
            owner._files[assignment.file],
            assignment.start,
            assignment.end,
            assignment.evaluation,
        )

    def _push(self, task: Task) -> None:
        self._pulled += len(task)
        self._open.append((task, self._pulled))

    def _take_trained(self) -> list[m.Report]:
        found = []
        while self._open and self._open[0][1] <= self._trained:
            task = self._open.popleft()[0]
            if self._metrics:
                task.report(**self._metrics)
                self._metrics = {}
            found.append(task._result())
        return found

    def _take_all(self) -> list[m.Report]:
        self._trained = self._pulled
        return self._take_trained()

    def give_back(self) -> None:
        """Report what is done, and give the other tasks back."""
        self._ahead = None
        finished = self._take_trained()
        rest = [task._key() for task, _ in self._open]
        self._open.clear()
        self._trained, self._in_hand = self._pulled, 0
        self._session.give_back(finished, rest)


def _batched(records: Iterator[R], size: int) -> Iterator[list[R]]:
    batch: list[R] = []
    for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
