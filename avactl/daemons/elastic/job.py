"""State of a job: its datasets and workers, and which worker holds which task.

Pure: time comes as an argument, and every change is an event, which `record` gets before it takes effect. The same
events, applied to a new job, make the same state.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from avactl.daemons.elastic.clock import Gradients
from avactl.daemons.elastic.definition import (
    MAX_ALL_FILES,
    MAX_ALL_TASKS,
    MAX_DATASETS,
    Definition,
    DefinitionError,
    Task,
)
from avactl.daemons.elastic.events import (
    Ended,
    Event,
    Gone,
    Gradient,
    Joined,
    Registered,
    Returned,
    Stepped,
    TaskDone,
    TaskGiven,
    WorkerReplaced,
)
from avactl.daemons.elastic.progress import MAX_METRICS, EpochProgress
from avactl.daemons.elastic.workers import REMEMBERED, ElasticWorker

K = TypeVar("K")
V = TypeVar("V")
LEASE = 8.0
"""Seconds without a message after which a worker is lost."""
MAX_WORKERS = 20_000
MAX_HELD = 64
"""Tasks that one worker may hold."""
MAX_ALL_HELD = 100_000
"""Tasks that all workers together may hold: one takes some hundred bytes."""
HOLDERS = 2
"""Workers that may hold the same task."""
_SIZE_REMEDIES = {"files": "pack the files (`avactl dataset pack`)", "tasks": "raise records_per_task"}
_STRAGGLING, _AT_LEAST = 3.0, 2.0
"""At the end of an epoch a task is given to a second worker after this many medians, and not before these seconds."""
_MAX_INDEXES_AHEAD = 1_000_000
"""Positions beyond the frontier of a restored state in which a worker's report is believed."""
_MAX_REMEMBERED = 10_000
"""Processes that are remembered, so that replaced ones do not come back."""


class JobError(ValueError):
    """A worker asked for what it must not; the message is for the author of its script."""


class ReplacedError(JobError):
    """Another process has joined with the worker's name."""


class TaskKey(NamedTuple):
    """A task as workers name it."""

    dataset: str
    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task for a worker."""

    key: TaskKey
    task: Task
    evaluation: bool


class Nothing(Enum):
    """Reasons why a worker gets no task."""

    YET = "other workers hold the last tasks of an epoch"
    MORE = "all tasks of all epochs are done"


CARRIED = "carried"
"""Key in the header of a progress that is from an earlier run: a dataset that is declared otherwise begins anew."""


class SavedProgress(NamedTuple):
    """Progress of a dataset whose definition is not known."""

    digest: bytes
    header: dict[str, Any]
    bitmap: bytes


class ElasticDataset:
    """A dataset's definition, progress and holders."""

    def __init__(self, number: int, progress: EpochProgress) -> None:
        self.number, self.definition, self.progress = number, progress.definition, progress
        self.holders: dict[int, dict[int, float]] = {}
        """By position, the workers that hold the task, each with the time since when; the oldest position first."""
        self.durations: list[float] = []
        """Seconds of the last tasks."""

    def overdue(self, seconds: float, now: float, worker: int) -> int | None:
        """Return the oldest position that is held for `seconds`, by fewer than HOLDERS workers, and not by this one."""
        for position, holders in self.holders.items():
            if now - next(iter(holders.values())) < seconds:
                return None
            if len(holders) < HOLDERS and worker not in holders:
                return position
        return None

    def patience(self) -> float:
        """Return the seconds after which a task straggles."""
        if not self.durations:
            return max(_AT_LEAST, LEASE)
        return max(_AT_LEAST, _STRAGGLING * sorted(self.durations)[len(self.durations) // 2])

    def took(self, seconds: float) -> None:
        """Note the duration of a task."""
        self.durations.append(seconds)
        if len(self.durations) > 200:
            del self.durations[:100]


class JobLedger:
    """Datasets, workers, and who holds what."""

    def __init__(self, record: Callable[[Event], None] = lambda event: None) -> None:
        self.record = record
        self.datasets: dict[str, ElasticDataset] = {}
        self.by_number: list[ElasticDataset] = []
        self.unregistered: dict[str, SavedProgress] = {}
        """Progress from a state without definitions, by dataset: a worker registers the dataset again."""
        self.workers: dict[int, ElasticWorker] = {}
        self._by_name: dict[str, ElasticWorker] = {}
        self.next_worker = 1
        self.ended: int | None = None
        """Steps of synchronous training, once it has ended."""
        self.gradients = Gradients()
        """Of steps with backup workers."""
        self.told_to_leave: deque[WorkerReplaced] = deque(maxlen=REMEMBERED)
        """Workers that were told to leave because they are slow."""
        self._replaced: OrderedDict[int, None] = OrderedDict()
        self._newest: OrderedDict[str, int] = OrderedDict()
        """By name, the incarnation of the process that joined last, also if it is gone."""
        self._held = 0
        """Tasks that workers hold, each counted by worker."""
        self.available = 0
        """Counts up whenever a waiting worker may get a task, or end."""

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event, now: float) -> None:
        """Change the state by an event. Raises ValueError if it does not fit."""
        try:
            self._apply(event, now)
        except (KeyError, IndexError):
            raise ValueError(f"an event that does not fit the state: {event}") from None

    def _apply_event(self, event: Event, now: float) -> None:
        self.record(event)
        self._apply(event, now)

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case TaskGiven(number, position, index):
                self._give_task(number, position, self.workers[index], now)
            case TaskDone(number, position, index, epoch, metrics):
                self._complete_task(self.by_number[number], position, index, epoch, metrics, now)
            case Returned(number, position, index):
                self._release_task(number, position, self.workers[index])
            case Joined(index, incarnation, name):
                self.add_worker(ElasticWorker(index, name, incarnation, now), (), now)
            case Gone(index):
                worker = self.workers.pop(index)
                for number, position in sorted(worker.held):
                    self._release_task(number, position, worker)
                self.gradients.lost(worker.name)
                if self._by_name.get(worker.name) is worker:
                    del self._by_name[worker.name]
            case Ended(step):
                self.ended = step
            case Stepped(step):
                self.gradients.begin(step)
            case Gradient(step, index, fate):
                self.gradients.note(step, self.workers[index].name, fate)
            case WorkerReplaced():
                self.told_to_leave.append(event)
            case Registered(definition):
                saved = self.unregistered.pop(definition.name, None)
                if saved is not None and saved.digest == definition.digest:
                    progress = EpochProgress.restored(definition, saved.header, saved.bitmap)
                else:
                    # An evaluation that is registered late begins with the epoch in progress.
                    progress = EpochProgress(
                        definition, self.datasets[definition.after].progress.epoch if definition.after else 0
                    )
                self.add(progress)

    def add(self, progress: EpochProgress) -> ElasticDataset:
        """Add a dataset with its progress."""
        dataset = ElasticDataset(len(self.by_number), progress)
        self.by_number.append(dataset)
        self.datasets[dataset.definition.name] = dataset
        self.available += 1
        return dataset

    def add_worker(self, worker: ElasticWorker, held: Iterable[tuple[int, int]], now: float) -> None:
        """Add a worker, and the tasks that it holds: numbers of datasets, and positions."""
        self.workers[worker.index] = self._by_name[worker.name] = worker
        self.next_worker = max(self.next_worker, worker.index + 1)
        before = self._newest.pop(worker.name, worker.incarnation)
        if before != worker.incarnation:
            _remember_newest(self._replaced, before, None)
        _remember_newest(self._newest, worker.name, worker.incarnation)
        for number, position in held:
            self._give_task(number, position, worker, now)

    def _give_task(self, number: int, position: int, worker: ElasticWorker, now: float) -> None:
        dataset = self.by_number[number]
        dataset.progress.give(position)
        dataset.holders.setdefault(position, {})[worker.index] = now
        self._held += (number, position) not in worker.held
        worker.held.add((number, position))

    def _complete_task(
        self, dataset: ElasticDataset, position: int, index: int, epoch: int, metrics: dict[str, float], now: float
    ) -> None:
        holders = dataset.holders.pop(position, {})
        for holder in holders:
            if holder in self.workers:
                self._forget_held(self.workers[holder], dataset.number, position)
        task = dataset.progress.task(position)
        if worker := self.workers.get(index):
            if (since := holders.get(index)) is not None:
                dataset.took(now - since)
            number = None if dataset.definition.after else dataset.number
            worker.finished(task.end - task.start, None if since is None else now - since, number)
        dataset.progress.complete(epoch, position, metrics)
        if dataset.progress.epoch != epoch:
            self.available += 1

    def _release_task(self, number: int, position: int, worker: ElasticWorker) -> None:
        dataset = self.by_number[number]
        self._forget_held(worker, number, position)
        holders = dataset.holders.get(position, {})
        holders.pop(worker.index, None)
        if not holders and dataset.holders.pop(position, None) is not None:
            dataset.progress.put_back(position)
            self.available += 1

    def _forget_held(self, worker: ElasticWorker, number: int, position: int) -> None:
        self._held -= (number, position) in worker.held
        worker.held.discard((number, position))

    # -- datasets ----------------------------------------------------------------------------------------------------

    def register(self, definition: Definition, now: float) -> None:
        """Register a dataset. Raises DefinitionError if the name is taken by an unequal one."""
        known = self.datasets.get(definition.name)
        if known is not None:
            if known.definition.digest != definition.digest:
                raise DefinitionError(
                    f"dataset {definition.name} was registered before, and this worker says "
                    f"{known.definition.difference(definition)}: all workers must register the same"
                )
            return
        saved = self.unregistered.get(definition.name)
        if saved is not None and saved.digest != definition.digest and not saved.header.get(CARRIED):
            raise DefinitionError(
                f"dataset {definition.name} was registered before with other files or settings: all workers must "
                "register the same"
            )
        if len(self.datasets) >= MAX_DATASETS:
            raise DefinitionError(f"dataset {definition.name}: a job has at most {MAX_DATASETS} datasets")
        definitions = [definition, *(each.definition for each in self.by_number)]
        for what, total, most in (
            ("files", sum(len(each.counts) for each in definitions), MAX_ALL_FILES),
            ("tasks", sum(each.tasks for each in definitions), MAX_ALL_TASKS),
        ):
            if total > most:
                raise DefinitionError(
                    f"dataset {definition.name}: the datasets of the job would have {total:,} {what} together; "
                    f"{most:,} are possible: {_SIZE_REMEDIES[what]}"
                )
        if definition.after:
            main = self.datasets.get(definition.after)
            if main is None or main.definition.after:
                what = "is not registered" if main is None else "is an evaluation itself"
                raise DefinitionError(f"dataset {definition.name}: `after` names {definition.after}, which {what}")
        self._apply_event(Registered(definition), now)

    def carry(self) -> bool:
        """Take the progress of an earlier run over; return False if there is nothing left to do in it."""
        declared = {name: each for name, each in self.unregistered.items() if not each.header.get(CARRIED)}
        if declared:
            # That run declared its datasets: what it had from the one before, and did not declare, is of no use.
            self.unregistered = declared
        if all(each.header.get("finished") for each in self.unregistered.values()):
            return False
        self.ended, self.gradients = None, Gradients()
        self.told_to_leave.clear()
        for name, each in self.unregistered.items():
            self.unregistered[name] = each._replace(header={**each.header, CARRIED: True})
        return True

    def finished(self, dataset: ElasticDataset) -> bool:
        """Return True if all passes over a dataset are done."""
        main = self.datasets.get(dataset.definition.after, dataset)
        return dataset.progress.epoch >= main.definition.epochs

    def complete(self) -> bool:
        """Return True if there are datasets, and all are finished."""
        return bool(self.datasets) and all(self.finished(each) for each in self.by_number)

    def _open(self, dataset: ElasticDataset) -> bool:
        """Return True if tasks of the dataset's current epoch may be given: evaluation and training take turns."""
        if self.finished(dataset):
            return False
        epoch = dataset.progress.epoch
        if dataset.definition.after:
            return self.datasets[dataset.definition.after].progress.epoch > epoch
        name = dataset.definition.name
        return all(each.progress.epoch >= epoch for each in self.by_number if each.definition.after == name)

    # -- workers -----------------------------------------------------------------------------------------------------

    def join(self, name: str, incarnation: int, now: float) -> ElasticWorker:
        """Return the worker of a process that joins, or comes back.

        Raises ReplacedError if another process has joined with its name since, JobError if there are too many.
        """
        if incarnation in self._replaced:
            raise ReplacedError(
                f"another process joined as {name}: give every process of the job a name of its own (AVACTL_WORKER)"
            )
        worker = self._by_name.get(name)
        if worker is not None and worker.incarnation != incarnation:
            self._apply_event(Gone(worker.index), now)
            worker = None
        if worker is None:
            if len(self.workers) >= MAX_WORKERS:
                raise JobError(f"the job has {MAX_WORKERS:,} workers, and can have no more")
            self._apply_event(Joined(self.next_worker, incarnation, name), now)
            worker = self._by_name[name]
        worker.seen = now
        return worker

    def resume(
        self,
        worker: ElasticWorker,
        held: Iterable[TaskKey],
        finished: Iterable[tuple[TaskKey, Mapping[str, float]]],
        now: float,
    ) -> None:
        """Agree with a worker that came back on what it holds, and count what it has finished meanwhile."""
        for key, metrics in finished:
            self.finish(worker, key, metrics, now)
        kept: set[tuple[int, int]] = set()
        for key in held:
            dataset = self.datasets.get(key.dataset)
            if dataset is None or not self._is_believable(dataset, key) or dataset.progress.is_done(key.position):
                continue
            if len(kept) < MAX_HELD and self._held < MAX_ALL_HELD:
                kept.add((dataset.number, key.position))
                if (dataset.number, key.position) not in worker.held:
                    self._apply_event(TaskGiven(dataset.number, key.position, worker.index), now)
        for number, position in sorted(worker.held - kept):  # the worker never got these answers
            self._apply_event(Returned(number, position, worker.index), now)

    def named(self, name: str) -> ElasticWorker | None:
        """Return the worker of a name."""
        return self._by_name.get(name)

    def end(self, step: int, now: float) -> None:
        """Note that synchronous training has ended: workers that join later need not train."""
        if self.ended is None:
            self._apply_event(Ended(step), now)

    def clock(self, event: Stepped | Gradient, now: float) -> None:
        """Note what a clock with backup workers has decided."""
        self._apply_event(event, now)

    def current(self, worker: ElasticWorker) -> bool:
        """Return True if the worker is neither lost nor replaced."""
        return self.workers.get(worker.index) is worker

    def replace(self, worker: ElasticWorker, share: float, at: float, now: float) -> None:
        """Tell a worker to leave, which works at a `share` of the median speed. `at`: Unix time."""
        self._apply_event(WorkerReplaced(worker.incarnation, at, share, worker.name), now)

    def reason_to_leave(self, worker: ElasticWorker) -> str:
        """Return why a worker must leave, for its log; empty if it need not."""
        found = [each for each in self.told_to_leave if each.incarnation == worker.incarnation]
        if not found or self.ended is not None or self.complete():
            return ""
        return f"it works at {found[0].share:.2f} of the median speed"

    def leave(self, worker: ElasticWorker, now: float) -> None:
        """Take the tasks of a worker back."""
        if self.current(worker):
            self._apply_event(Gone(worker.index), now)

    def expire(self, now: float) -> list[ElasticWorker]:
        """Take the tasks of workers back whose lease has ended, and return these workers."""
        lost = [worker for worker in self.workers.values() if now - worker.seen > LEASE]
        for worker in lost:
            self._apply_event(Gone(worker.index), now)
        return lost

    # -- tasks -------------------------------------------------------------------------------------------------------

    def take(self, worker: ElasticWorker, names: Iterable[str], now: float, idle: bool = True) -> Assignment | Nothing:
        """Give the worker a task of one of the datasets, evaluation first. Raises JobError for unknown datasets.

        `idle`: it has nothing else to do, and may get a task that straggles at another worker. In synchronous training
        it has not: a record must not be in the parts of two members.
        """
        wanted = []
        for name in names:
            if name not in self.datasets:
                raise JobError(f"dataset {name[:80]!r} is not registered")
            wanted.append(self.datasets[name])
        if len(worker.held) >= MAX_HELD:
            raise JobError(f"worker {worker.name} holds {MAX_HELD} tasks, and can have no more")
        unfinished = [dataset for dataset in wanted if not self.finished(dataset)]
        if unfinished and self._held >= MAX_ALL_HELD:
            return Nothing.YET
        if len(unfinished) > 1:
            unfinished.sort(key=lambda each: not each.definition.after)
        for dataset in unfinished:
            if not self._open(dataset):
                continue
            position = self._choose(dataset, worker, now, idle)
            if position is not None:
                self._apply_event(TaskGiven(dataset.number, position, worker.index), now)
                key = TaskKey(dataset.definition.name, dataset.progress.epoch, position)
                return Assignment(key, dataset.progress.task(position), bool(dataset.definition.after))
        return Nothing.YET if unfinished else Nothing.MORE

    def _choose(self, dataset: ElasticDataset, worker: ElasticWorker, now: float, idle: bool) -> int | None:
        timeout = dataset.definition.timeout
        if timeout and (late := dataset.overdue(timeout, now, worker.index)) is not None:
            return late
        position = dataset.progress.peek()
        if position is not None or not idle:
            return position
        return dataset.overdue(dataset.patience(), now, worker.index)

    def finish(self, worker: ElasticWorker, key: TaskKey, metrics: Mapping[str, float], now: float) -> bool:
        """Count a task as done; False if it was counted before. Any worker's report counts: the work was done."""
        dataset = self.datasets.get(key.dataset)
        if dataset is None or not self._is_believable(dataset, key) or dataset.progress.is_done(key.position):
            return False
        chosen = dict(list(metrics.items())[:MAX_METRICS])
        self._apply_event(TaskDone(dataset.number, key.position, worker.index, key.epoch, chosen), now)
        return True

    def give_back(self, worker: ElasticWorker, key: TaskKey, now: float) -> None:
        """Take a task back that the worker did not finish."""
        dataset = self.datasets.get(key.dataset)
        if (
            dataset is not None
            and (dataset.number, key.position) in worker.held
            and key.epoch == dataset.progress.epoch
        ):
            self._apply_event(Returned(dataset.number, key.position, worker.index), now)

    def _is_believable(self, dataset: ElasticDataset, key: TaskKey) -> bool:
        """Return True if a task is of the current epoch, and was given, maybe just before this state was restored."""
        progress = dataset.progress
        if key.epoch != progress.epoch or self.finished(dataset):
            return False
        return 0 <= key.position < min(dataset.definition.tasks, progress.frontier + _MAX_INDEXES_AHEAD)


def _remember_newest(found: OrderedDict[K, V], key: K, value: V) -> None:
    """Add an entry, and forget the oldest of too many."""
    found[key] = value
    if len(found) > _MAX_REMEMBERED:
        found.popitem(last=False)
