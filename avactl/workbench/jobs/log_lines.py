"""Lines of a container's log: cut out of a stream, with the time of each, and without those that were read before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from avactl.kube.timestamps import timestamp

MOST = 8192
"""Bytes of a line that are shown."""
_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")


class LogLine(NamedTuple):
    """One line."""

    time: int
    """Nanoseconds since 1970, when the container wrote it."""
    text: str


class Cursor:
    """Position in the log of one container, by which reading goes on after a lost connection."""

    def __init__(self) -> None:
        self.time = 0
        """Time of the last line."""
        self._at_time = 0
        """Lines of that time which were read."""

    @property
    def since(self) -> str | None:
        """Time from which to read, in whole seconds, as the API takes it; None: from the beginning."""
        return timestamp(self.time // 10**9) if self.time else None

    def reader(self) -> LogReader:
        """Return a reader for a stream that begins at `since`."""
        return LogReader(self)

    def advance(self, time: int) -> None:
        """Note that a line was read."""
        if time > self.time:
            self.time, self._at_time = time, 1
        elif time == self.time:
            self._at_time += 1

    @property
    def at_time(self) -> int:
        """Lines with the time of the last line that were read."""
        return self._at_time


class LogReader:
    """Cuts one stream into lines. Lines that the cursor has passed are left out."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._before, self._skip = cursor.time, cursor.at_time
        self._rest = b""
        self._cut = False

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """Yield the lines that are complete. Long ones are cut."""
        *complete, last = data.split(b"\n")
        for part in complete:
            self._add(part)
            line = self._take_line()
            self._rest, self._cut = b"", False
            if line is not None:
                yield line
        self._add(last)

    def _add(self, part: bytes) -> None:
        room = MOST + 40 - len(self._rest)  # 40: the time
        self._cut = self._cut or len(part) > room
        self._rest += part[:room]

    def end(self) -> Iterator[LogLine]:
        """Yield the last line, if it has no newline: of a container that has ended."""
        line = self._take_line() if self._rest else None
        self._rest = b""
        if line is not None:
            yield line

    def _take_line(self) -> LogLine | None:
        found = _TIMESTAMP.match(self._rest)
        if found is None:
            return None  # words of the API server, such as `unable to retrieve container logs`
        seconds = datetime.fromisoformat((found[1] + found[3]).decode()).timestamp()
        time = int(seconds) * 10**9 + int((found[2] or b"0").ljust(9, b"0"))
        if time < self._before:
            return None
        if time == self._before and self._skip:
            self._skip -= 1
            return None
        self._cursor.advance(time)
        # Of a progress bar, the last state.
        text = self._rest[found.end() :].rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        return LogLine(time, text + "…" if self._cut else text)
