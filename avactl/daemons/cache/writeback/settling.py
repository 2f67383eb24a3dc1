"""Settling: the time for which a copy in the store must stay intact before its source is released.

An upload that fails, or whose daemon has died, is ended by the engine's worker at some later time: it closes the object
with the data so far, and deletes it (`UfsFileWriteHandler`, Alluxio 2.9.4). That can hit the object of the next upload.
So a copy that follows such an upload is verified only when no worker can be busy with the earlier one any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from avactl.daemons.cache.engine import CachedFile


class _Copy(NamedTuple):
    id: int
    checksum: str


class Settling:
    """Paths with uploads that may end late, and their later copies in the store."""

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`settle` is the time in which a worker ends an upload, seconds."""
        self._settle, self._clock = settle, clock
        self._suspects: dict[str, float] = {}
        """When the last upload failed, by path. A path and not a file: a writer may have replaced the file since."""
        self._copies: dict[str, _Copy] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def suspect(self, path: str) -> None:
        """Note that an upload has failed, or is given up, and may be ended at any later time."""
        self._suspects[path] = self._clock()

    def found(self, path: str) -> None:
        """Note an upload that was begun and not completed; if this daemon did not begin it, it counts from now."""
        self._suspects.setdefault(path, self._clock())

    def uploaded(self, file: CachedFile) -> str | None:
        """Return the SHA-256 of the copy that waits, if it is of this file."""
        copy = self._copies.get(file.path)
        return copy.checksum if copy is not None and copy.id == file.id else None

    def waits(self, file: CachedFile) -> bool:
        """Return True if the file has a copy that is to be verified later."""
        return self.uploaded(file) is not None and not self._is_settled(file.path)

    def settled(self, file: CachedFile, checksum: str) -> bool:
        """Return True if nothing can harm a copy that was verified just now; otherwise keep it to be verified again."""
        if self._is_settled(file.path):
            self._copies.pop(file.path, None)
            return True
        self._copies[file.path] = _Copy(file.id, checksum)
        return False

    def forget(self, dirty: Collection[str]) -> None:
        """Forget paths that are no longer dirty, once they have settled."""
        self._copies = {path: copy for path, copy in self._copies.items() if path in dirty}
        self._suspects = {
            path: since for path, since in self._suspects.items() if path in dirty or not self._is_settled(path)
        }

    def _is_settled(self, path: str) -> bool:
        since = self._suspects.get(path)
        return since is None or self._clock() >= since + self._settle
