"""Checkpoints of a training script, saved while training goes on.

    from avactl_worker.checkpoint import Checkpoints

    with Checkpoints(model=model, optimizer=optimizer) as checkpoints:
        for step in range(checkpoints.restore(), 10_000):
            train(model, optimizer, step)
            checkpoints.step(step + 1)

Training waits only for a copy in memory; a thread writes it. A checkpoint is complete or absent, also after `kill -9`.
Needs neither torch nor NumPy, and saves tensors and arrays of both.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from avactl_worker.checkpoint import files
from avactl_worker.checkpoint.errors import CheckpointError, TornError
from avactl_worker.checkpoint.snapshot import Block
from avactl_worker.checkpoint.state import addresses, captured, checked, optimizers, put_back
from avactl_worker.checkpoint.stores import Bucket, Directory, name_of, store_at
from avactl_worker.checkpoint.writer import Writer
from avactl_worker.dataset import Dataset

__all__ = ["CheckpointError", "Checkpoints", "load"]
log = logging.getLogger("avactl_worker")

_EVERY, _KEEP = 1800.0, 3
_LISTINGS, _LISTING_INTERVAL_S = 5, 1.0
"""How often checkpoints are listed until all that are listed can be opened: FUSE may keep an entry for a second."""
_now = time.monotonic
_TERMINATED = 128 + signal.SIGTERM


def load(location: Any = None, step: int | None = None) -> dict[str, Any]:
    """Return the states in the newest complete checkpoint, or in that of `step`, by the names of the objects.

    `location` is a directory or a URL (default: the job's). Unpickles: load only what you would run.
    Raises CheckpointError if there is none.
    """
    store = store_at(location or _location())
    found = _read(store, step)
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {store}")
    return found[1]


class Checkpoints:
    """Saves objects by interval and on SIGTERM, and restores them.

    `objects` are modules, optimizers, schedulers, scalers, datasets of the job's master, and all else that has
    `state_dict` and `load_state_dict`; dicts, whose values are replaced; and NumPy's generators. The states of the
    global random generators of Python, NumPy and torch are saved too. Of distributed processes, the first saves.
    """

    def __init__(
        self,
        location: Any = None,
        every: float | None = None,
        keep: int | None = None,
        overlap: bool = False,
        **objects: Any,
    ) -> None:
        """`location` is a directory or a URL, `every` the seconds between two checkpoints, and `keep` the number of
        checkpoints that are kept. Default: the job's `checkpoint`, by its environment. With `overlap`, training does
        not wait for the copy of what torch's optimizers among the objects update on the CPU: that is copied during the
        next forward and backward pass, and the optimizers wait for it. Raises CheckpointError.
        """
        checked(objects)
        self._objects = objects
        self._store = store_at(location or _location())
        self._every = _number("AVACTL_CHECKPOINT_EVERY", _EVERY) if every is None else every
        self._writer = Writer(
            self._store, max(1, int(_number("AVACTL_CHECKPOINT_KEEP", _KEEP) if keep is None else keep))
        )
        self._block = Block()
        self._optimizers = optimizers(objects) if overlap else []
        for each in self._optimizers:
            each.register_step_pre_hook(lambda *_: self._block.wait())
        self._prepared = self._late = self._terminated = self._closed = False
        self._due = _now() + self._every
        self._pid = os.getpid()
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)
        atexit.register(self.close)

    # -- saving ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """Call after each step, with the number of steps done: saves if it is time, and ends the process on SIGTERM.

        While a save is under way there is no other: it is made up for as soon as that one is written. After SIGTERM,
        the process saves, waits until that is written, and exits with code 143 (or the handler before is called).
        Raises CheckpointError if the last checkpoint could not be written.
        """
        self._writer.raise_error()
        if self._writer.torn:
            self._give_up_overlap()
            self._due = _now()
        if self._terminated:
            self._end(step)
        elif not self.saves:
            return
        elif _now() >= self._due:
            if not self._writer.busy:
                self.save(step)
            elif not self._late:
                self._late = True
                log.warning(
                    "checkpoint of step %d is late: that of step %d is still being written to %s",
                    step,
                    self._writer.step,
                    self._store,
                )
        elif not self._prepared:
            self._prepared = True
            self._block.prepare(captured(self._objects))

    def save(self, step: int, wait: bool = False) -> None:
        """Save now, after any save that is under way; with `wait`, return when it is written.

        Does nothing in processes that do not save. Raises CheckpointError if this or the last one could not be written.
        """
        if not self.saves:
            return
        if self._writer.busy:
            log.warning(
                "step %d waits: that of step %d is still being written to %s", step, self._writer.step, self._store
            )
        self._writer.wait()
        self._writer.raise_error()
        if self._writer.torn:
            self._give_up_overlap()
        began = _now()
        self._due, self._late, self._prepared = began + self._every, False, True
        snapshot = self._block.copy(captured(self._objects), set() if wait else addresses(self._optimizers))
        log.info("checkpoint of step %d: copied in %.3f s", step, _now() - began)
        self._writer.start(step, snapshot)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises CheckpointError if it could not be."""
        self._writer.wait()
        self._writer.raise_error()
        if self._writer.torn:
            raise CheckpointError(self._give_up_overlap())

    def _give_up_overlap(self) -> str:
        message = (
            f"step {self._writer.step} was not saved: parameters changed outside of an optimizer's step while they "
            "were copied; checkpoints are copied without overlap from now on"
        )
        log.warning("%s", message)
        self._optimizers, self._writer.torn = [], False
        return message

    @property
    def saves(self) -> bool:
        """True in the first of distributed processes."""
        return _rank() == 0 and os.getpid() == self._pid

    def close(self) -> None:
        """Wait until the last checkpoint is written. Raises CheckpointError if it could not be."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._writer.wait()
        self._block.wait()
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
        self.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- termination -------------------------------------------------------------------------------------------------

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked process, such as one of a DataLoader
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._terminated = True

    def _end(self, step: int) -> None:
        if not self.saves and _in_group() and "AVACTL_MASTER" not in os.environ:
            return  # the first process needs the others until it has saved; elastic jobs go on with fewer
        if self.saves:
            self.save(step, wait=True)
            for each in self._objects.values():
                if isinstance(each, Dataset):
                    each.finish()  # it is in the checkpoint, so no other worker need train it
            log.warning("terminated: saved step %d to %s", step, self._store)
        before = self._before
        self.close()
        if callable(before):
            before(signal.SIGTERM, None)
        raise SystemExit(_TERMINATED)

    # -- restoring ---------------------------------------------------------------------------------------------------

    def restore(self, step: int | None = None) -> int:
        """Restore the newest complete checkpoint, and return its number of steps; 0 if there never was one.

        With `step`, restore that one: later ones are removed after the next save. Raises CheckpointError if it is
        missing, if there are checkpoints and none can be read or is complete, if the only ones are in the directory
        `.pushed` of a cache tier, or if an object's state is not in it.
        """
        self._block.wait()
        found = _read(self._store, step)
        if found is None:
            return 0
        restored, state = found
        try:
            put_back(self._objects, state, generators=self.saves)
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint of step {restored} in {self._store}: {error}") from None
        if step is not None:
            self._writer.abandoned = [each for each in self._store.steps() if each > step]
        log.info("restored step %d from %s", restored, self._store)
        self._due = _now() + self._every
        return restored


def _read(store: Directory | Bucket, step: int | None) -> tuple[int, dict[str, Any]] | None:
    """Return the newest complete checkpoint, or that of a step; None if there is none at all."""
    for attempt in range(_LISTINGS):
        if attempt:
            time.sleep(_LISTING_INTERVAL_S)
        steps = _steps(store)
        if step is not None and step not in steps:
            others = f"there are {', '.join(map(str, steps))}" if steps else "there is none at all"
            raise CheckpointError(f"there is no checkpoint of step {step} in {store}: {others}")
        try:
            return _newest(store, steps if step is None else [step])
        except FileNotFoundError as error:
            # Another process has removed it, as it has written newer ones, or the listing is an old one: an older
            # checkpoint of the same listing is not the newest.
            missing = error
    raise CheckpointError(f"checkpoints in {store} are listed, but are not there: {missing}") from missing


def _steps(store: Directory | Bucket) -> list[int]:
    try:
        steps = store.steps()
        elsewhere = store.pushed()
    except OSError as error:
        raise CheckpointError(f"checkpoints in {store} cannot be listed: {error}") from error
    newest = steps[-1] if steps else -1
    if elsewhere is None or elsewhere[1] <= newest:
        return steps
    where, latest = elsewhere
    if steps:
        log.warning("%s has a checkpoint of the later step %d, which is not in %s", where, latest, store)
        return steps
    raise CheckpointError(
        f"there is no checkpoint in {store}, but one of step {latest} in {where}: to resume, copy it back "
        f"(mkdir -p {store} && cp {where}/{name_of(latest)} {store}/); to begin anew, use another directory"
    )


def _newest(store: Directory | Bucket, steps: list[int]) -> tuple[int, dict[str, Any]] | None:
    """Return the newest complete checkpoint of some; None if there are none. Raises FileNotFoundError."""
    reasons = []
    for each in reversed(steps):
        try:
            file, size = store.open(each)
            with file:
                return files.read(file, size)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(f"the checkpoint of step {each} in {store} cannot be read: {error}") from error
        except TornError as error:
            reasons.append(f"{each}: {error}")
            log.warning("the checkpoint of step %d in %s is not complete: %s", each, store, error)
    if not steps:
        return None
    raise CheckpointError(
        f"no checkpoint in {store} is complete ({'; '.join(reasons)}): remove the files to begin anew"
    )


def _location() -> str:
    """Return the job's location: a directory if it has one, so that a bucket is used through its cache tier."""
    found = os.environ.get("AVACTL_CHECKPOINT_DIR") or os.environ.get("AVACTL_CHECKPOINT_PATH")
    if not found:
        raise CheckpointError(
            "no location of the checkpoints: add `checkpoint: {volume: 10Gi}` to the job, or give a directory"
        )
    return found


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise CheckpointError(f"{name} is {text!r}, and not a number") from None


def _in_group() -> bool:
    """Return True if torch's processes work together."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def _rank() -> int:
    if _in_group():
        return int(sys.modules["torch"].distributed.get_rank())
    return int(os.environ.get("RANK") or os.environ.get("AVACTL_INDEX") or 0)
