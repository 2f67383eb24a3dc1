"""The connection of a worker to the job master."""

from __future__ import annotations

import atexit
import os
import random
import socket
from typing import Any, Mapping, Sequence

from avactl_worker.dataset import Dataset, Reader
from avactl_worker.group import Group
from avactl_worker.manifest import Manifest, entries
from avactl_worker.session import MasterError, Session

_UNBOUNDED = 2**32
"""Staleness of asynchronous training, in steps."""


def connect(address: str = "", worker: str = "", patience: float = 600.0) -> Master:
    """Join the job of the master at `address`, HOST:PORT (default: $AVACTL_MASTER).

    `worker` is unique among the job's live processes (default: $AVACTL_WORKER, else the host's name with a random
    part). A process that joins replaces one of the same name. While the master is unreachable, all calls wait, for at
    most `patience` seconds. Raises MasterError.
    """
    address = address or os.environ.get("AVACTL_MASTER", "")
    if not address:
        raise MasterError("no address of the master: set AVACTL_MASTER, or call connect('HOST:PORT')")
    return Master(Session(address, worker or _name(), patience))


def _name() -> str:
    name = os.environ.get("AVACTL_WORKER", "")
    if not name:
        return f"{socket.gethostname()[:200]}-{random.SystemRandom().getrandbits(32):08x}"
    # Launchers such as torchrun start several processes in one pod.
    return name + "-" + os.environ["LOCAL_RANK"] if "LOCAL_RANK" in os.environ else name


class Clock:
    """Bounds how far workers are apart: none is more than `staleness` steps ahead of the slowest."""

    def __init__(self, session: Session, staleness: int) -> None:
        self._session, self._staleness = session, staleness
        self.step = 0
        """The step in progress, from 1; a worker that joins later begins with the slowest."""
        self._asked = 0

    def tick(self) -> int:
        """Begin the next step: wait for slower workers if need be. Returns its number.

        In a job with backup workers, a worker that was late goes on with the step of the others.
        """
        following = self.step + 1 if self.step else 0
        self.step = self._session.clock(following, self._staleness, self._asked == self.step)
        return self.step

    def counts(self) -> bool:
        """Return True if this worker's gradient of the step counts: then push it before the next `tick`.

        False only in a job with backup workers, if enough others were faster. Does not wait for them.
        """
        self._asked = self.step
        return self._session.counts(self.step)


class Master:
    """The job's master, and this process as one of its workers. Leaves the job at the end of a `with` block."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._groups: list[Group] = []
        atexit.register(session.close)

    @property
    def worker(self) -> str:
        """Name of this worker."""
        return self.session.worker

    def dataset(
        self,
        name: str,
        files: int | Sequence[tuple[Any, int]] = 0,
        records_per_task: int = 100,
        epochs: int = 1,
        seed: int | None = None,
        after: str = "",
        timeout: float = 0.0,
        read: Reader[Any] | None = None,
        manifest: str | os.PathLike[str] | None = None,
        labels: Mapping[str, Any] | None = None,
        at: str | os.PathLike[str] | None = None,
    ) -> Dataset[Any]:
        """Return a dataset of the job. All workers must declare it alike.

        `files` are pairs of a file and its number of records, or only the number of all records. `records_per_task`
        of one file are handed out together, in an order that follows from `seed` and the epoch (default: that of the
        files). With `after`, it is an evaluation, passed once after each epoch of that dataset. A task is given to a
        second worker after `timeout` seconds (default: only if it straggles at the end of an epoch).
        `manifest` is that of `avactl dataset pack`, whose shards are the files and are read from where they are
        mounted; or one without `records`: then each of its lines is a record, and `task.file[task.start : task.end]`
        returns these as dicts. In both cases `read` may be omitted. `labels` chooses lines, and `at` is the directory
        where the data is mounted, unless the manifest is beside it.
        Raises MasterError if another worker has declared it otherwise, or a value is out of bounds; ManifestError.
        """
        if manifest is not None:
            listed = Manifest(manifest, labels, at)
            files = listed.shards or [(listed, len(listed))]
            read = read or (listed.records if listed.shards else entries)
        elif labels is not None or at is not None:
            raise ValueError(f"dataset {name}: `labels` and `at` choose from a manifest")
        pairs = [("", files)] if isinstance(files, int) else [(file, int(count)) for file, count in files]
        passes = 0 if after else epochs
        return Dataset(self.session, name, pairs, records_per_task, passes, seed, after, timeout, read)

    def clock(self, staleness: int | None = None) -> Clock:
        """Return the clock of the job. Default of `staleness`: what the job's spec says, by AVACTL_STALENESS for
        `ssp`, 0 for `bsp`, unbounded for `asp`."""
        if staleness is None:
            consistency = os.environ.get("AVACTL_CONSISTENCY", "")
            staleness = {"bsp": 0, "ssp": int(os.environ.get("AVACTL_STALENESS", "0"))}.get(consistency, _UNBOUNDED)
        return Clock(self.session, staleness)

    def group(self, state: Any, least: int | None = None, most: int | None = None) -> Group:
        """Join the workers that train together, in steps: synchronous training.

        `state` is a list or dict of NumPy arrays, or a list of TensorFlow variables, or of PyTorch modules and
        optimizers: all that a worker must take from the others when it joins, changed in place only. No step is made
        with fewer workers than `least` (default: the job's `min`); a first round begins at once with `most` (default:
        the job's `max`).
        """
        if self._groups:
            raise MasterError("a process has one group")
        bounds = os.environ.get("AVACTL_WORKER_RANGE", "1:0").split(":")
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        lower, upper = (processes * int(each) for each in bounds)
        found = Group(self.session, state, lower if least is None else least, upper if most is None else most)
        self._groups.append(found)
        return found

    def close(self) -> None:
        """Leave the job; tasks that are not done are free for others at once. A group stays until its leader leaves."""
        self._close(finish=True)

    def _close(self, finish: bool) -> None:
        for each in self._groups:
            each.close(finish)
        self.session.close()

    def __enter__(self) -> Master:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(finish=kind is None)
