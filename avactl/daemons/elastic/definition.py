"""Definition of a dataset: how its files are cut into tasks, and in which order an epoch takes them.

Everything is computed from the definition: no object is kept per task, so a million tasks need a few megabytes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_DATASETS = 100
MAX_FILES = 1_000_000
MAX_TASKS = 10_000_000
MAX_ALL_FILES, MAX_ALL_TASKS = 1_000_000, 10_000_000
"""Files and tasks of all datasets of a job together: 24 bytes a file, and 4.25 a task, twice that for a moment at the
start of an epoch. So what workers register fits into the pod's 512Mi, and into the journal."""
MAX_RECORDS = 2**50
MAX_EPOCHS = 1_000_000
MAX_SEED = 2**63 - 1
MAX_TIMEOUT = 30 * 86400.0
"""Seconds."""
_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DIGEST_BYTES = 32
"""Bytes of a SHA-256."""


class DefinitionError(ValueError):
    """A dataset cannot be registered as a worker asks; the message says why, for the author of its script."""


class Task(NamedTuple):
    """Records `start` to `end` (exclusive) of one file."""

    file: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A dataset as workers register it. Names of files stay with the workers; the master needs only their records."""

    name: str
    digest: bytes
    """SHA-256 of everything that workers must agree on, names of files included."""
    counts: npt.NDArray[np.int64] = field(repr=False, compare=False)
    """Records of each file."""
    records_per_task: int
    epochs: int
    """Passes over the data. 0 for evaluation, which makes one after each epoch of `after`."""
    seed: int | None = None
    """Seed of the order of tasks, another order in each epoch; None: tasks are in the order of files."""
    after: str = ""
    """Evaluation: the dataset after each epoch of which this one is passed once."""
    timeout: float = 0.0
    """Seconds after which a task is given to another worker too; 0: none."""
    tasks: int = field(init=False, repr=False, compare=False)
    """Number of tasks of an epoch."""
    # Single numbers are read from an array of Python's in a third of the time that NumPy takes.
    _ends: array[int] = field(init=False, repr=False, compare=False)
    """Number of tasks up to the end of each file."""
    _records: array[int] = field(init=False, repr=False, compare=False)
    """Records of each file."""

    def __post_init__(self) -> None:
        ends = np.cumsum(-(-self.counts // self.records_per_task), dtype=np.int64)
        object.__setattr__(self, "tasks", int(ends[-1]))
        object.__setattr__(self, "_ends", array("q", ends.tobytes()))
        object.__setattr__(self, "_records", array("q", self.counts.astype(np.int64).tobytes()))

    @property
    def records(self) -> int:
        """Number of records of an epoch."""
        return int(self.counts.sum())

    def task(self, index: int) -> Task:
        """Return a task by its index in the order of files."""
        file = bisect_right(self._ends, index)
        before = self._ends[file - 1] if file else 0
        start = (index - before) * self.records_per_task
        return Task(file, start, min(start + self.records_per_task, self._records[file]))

    def order(self, epoch: int) -> array[int] | None:
        """Return the task index at each position of an epoch; None for the order of files.

        NumPy guarantees that RandomState's streams never change (NEP 19), so a restarted master with another
        version of NumPy goes on in the same order.
        """
        if self.seed is None:
            return None
        bits = np.random.MT19937(np.random.SeedSequence([self.seed, epoch]))
        order = array("i", [0]) * self.tasks
        view = np.frombuffer(order, np.int32)
        view[:] = np.arange(self.tasks, dtype=np.int32)
        np.random.RandomState(bits).shuffle(view)
        return order

    def difference(self, other: Definition) -> str:
        """Describe how another definition of the same name differs, in the words of the worker library."""
        pairs = (
            ("records_per_task", self.records_per_task, other.records_per_task),
            ("epochs", self.epochs, other.epochs),
            ("seed", self.seed, other.seed),
            ("after", self.after, other.after),
            ("timeout", self.timeout, other.timeout),
            ("number of files", len(self.counts), len(other.counts)),
            ("number of records", self.records, other.records),
        )
        found = [f"{what} {theirs} instead of {ours}" for what, ours, theirs in pairs if ours != theirs]
        return ", ".join(found) or "other names of files, or other numbers of records in them"


def check_definition(
    name: str,
    digest: bytes,
    counts: Sequence[int],
    records_per_task: int,
    epochs: int,
    seed: int | None,
    after: str,
    timeout: float,
) -> Definition:
    """Return the definition that a worker sent. Raises DefinitionError if a value is out of its bounds."""
    if not _NAME_PATTERN.fullmatch(name):
        raise DefinitionError(f"dataset {name[:80]!r}: a name has 1 to 63 letters, digits, '.', '_' and '-'")
    if len(digest) != _DIGEST_BYTES:
        raise DefinitionError(f"dataset {name}: the digest has {len(digest)} bytes instead of {_DIGEST_BYTES}")
    if not 1 <= len(counts) <= MAX_FILES:
        raise DefinitionError(f"dataset {name}: {len(counts)} files; 1 to {MAX_FILES:,} are possible")
    if min(counts) < 0 or sum(counts) > MAX_RECORDS:
        raise DefinitionError(f"dataset {name}: a number of records is negative, or the sum is over {MAX_RECORDS:,}")
    if sum(counts) == 0:
        raise DefinitionError(f"dataset {name} has no records")
    if not 1 <= records_per_task <= MAX_RECORDS:
        raise DefinitionError(f"dataset {name}: records_per_task is {records_per_task}; it must be at least 1")
    if after and not _NAME_PATTERN.fullmatch(after):
        raise DefinitionError(f"dataset {name}: after is {after[:80]!r}, which is not the name of a dataset")
    if after == name:
        raise DefinitionError(f"dataset {name} cannot be evaluated after itself")
    if (epochs != 0) if after else not 1 <= epochs <= MAX_EPOCHS:
        rule = "an evaluation has none" if after else f"1 to {MAX_EPOCHS:,} are possible"
        raise DefinitionError(f"dataset {name}: {epochs} epochs; {rule}")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise DefinitionError(f"dataset {name}: seed is {seed}; it must be from 0 to {MAX_SEED}")
    if not 0 <= timeout <= MAX_TIMEOUT:
        raise DefinitionError(f"dataset {name}: timeout is {timeout} s; 0 (none) to {MAX_TIMEOUT:g} are possible")
    numbers = np.array(counts, dtype=np.int64)
    tasks = int((-(-numbers // records_per_task)).sum())
    if tasks > MAX_TASKS:
        raise DefinitionError(
            f"dataset {name}: {tasks:,} tasks of {records_per_task:,} records; {MAX_TASKS:,} are possible: "
            "raise records_per_task"
        )
    return Definition(name, digest, numbers, records_per_task, epochs, seed, after, timeout)
