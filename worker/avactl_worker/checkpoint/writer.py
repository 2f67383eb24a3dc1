"""The thread that writes snapshots, while training goes on."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from avactl_worker.checkpoint import files
from avactl_worker.checkpoint.errors import CheckpointError
from avactl_worker.checkpoint.snapshot import Snapshot
from avactl_worker.checkpoint.stores import Bucket, Directory

log = logging.getLogger("avactl_worker")


class Writer:
    """Writes one snapshot at a time, and removes old checkpoints."""

    def __init__(self, store: Directory | Bucket, keep: int) -> None:
        self.store, self._keep = store, keep
        self.step = -1
        """The step of the last snapshot that was given."""
        self.abandoned: list[int] = []
        """Steps after the restored one: the next checkpoint replaces them."""
        self.torn = False
        """True if parameters changed while they were copied: the step was not saved."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._began = self._warned = False

    @property
    def busy(self) -> bool:
        """True while a snapshot is written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, snapshot: Snapshot) -> None:
        """Write a snapshot in a thread. There must be no other one."""
        self.step = step
        self._thread = threading.Thread(
            target=self._run, args=(step, snapshot), name="avactl-checkpoint-writer", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the snapshot is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raise CheckpointError if the last snapshot could not be written; once for each. Torn ones are no errors."""
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(
                f"the checkpoint of step {self.step} could not be written to {self.store}: {error}"
            ) from error

    def _run(self, step: int, snapshot: Snapshot) -> None:
        began = time.monotonic()
        try:
            # First of all: the optimizers wait for it.
            self.torn = not snapshot.complete()
            if self.torn:
                return
            if not self._began:
                self._began = True
                self.store.remove_parts()
            self.store.write(step, files.chunks(step, snapshot))
        except BaseException as error:  # the training loop raises it
            self._error = error
            return
        size = sum(buffer.nbytes for buffer in snapshot.buffers)
        log.info("checkpoint of step %d: %.1f MB written in %.1f s", step, size / 1e6, time.monotonic() - began)
        try:
            self._clean(step)
        except Exception as error:
            log.warning("old checkpoints in %s could not be removed: %s", self.store, error)

    def _clean(self, step: int) -> None:
        abandoned = {each for each in self.abandoned if each != step}
        others = [each for each in self.store.steps() if each not in abandoned and each != step]
        if others and others[-1] > step and not self._warned:
            self._warned = True
            log.warning(
                "%s has checkpoints of later steps, which `restore` would take: is it another run's?", self.store
            )
        # Never the one just written, although those of later steps are newer by their number.
        for each in [*abandoned, *others[: max(0, len(others) - self._keep + 1)]]:
            with contextlib.suppress(FileNotFoundError):
                self.store.remove(each)
        self.abandoned = []
