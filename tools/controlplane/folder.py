"""Temporary folders that are removed even if their owner is killed: then by the next process that creates one."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

PREFIX = "avactl-plane-"
LOCK = "owner.lock"


class OwnedFolder:
    """A new temporary folder, readable by this user only, and locked for as long as this process keeps it.

    Making one removes the folders of owners that died: etcd sets 64 MB aside in each. `sweep` is called before, with
    each of them.
    """

    def __init__(
        self, parent: Path | None = None, prefix: str = PREFIX, sweep: Callable[[Path], object] = lambda folder: None
    ) -> None:
        parent = parent or Path(tempfile.gettempdir())
        _sweep(parent, prefix, sweep)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Lock before naming, so that the lock of a living owner is never free.
        unnamed = self.path / f"{LOCK}.new"
        self._handle = unnamed.open("w")
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._handle.close()


def _sweep(parent: Path, prefix: str, sweep: Callable[[Path], object]) -> None:
    for lock in parent.glob(f"{prefix}*/{LOCK}"):
        try:
            if lock.stat().st_uid != os.getuid():
                continue
            with lock.open("w") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                sweep(lock.parent)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            # In use, or another process was faster.
            continue
