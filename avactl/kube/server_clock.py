"""The API server's clock, by which objects are stamped."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

_TOLERANCE_S = 5.0
"""Seconds by which the clocks may differ: `Date` has whole seconds, and a response may wait to be read."""


class ServerClock:
    """Unix time as the API server's answers have it; this machine's where both agree.

    Times in objects (creation, deletion, conditions) are the API server's, and what one replica of a daemon writes
    into a status is compared by another, on another machine: all use this clock, so a machine whose clock is wrong
    neither ends something early nor starts it twice.
    """

    def __init__(self) -> None:
        self._offset, self._date = 0.0, ""
        self._measured: float | None = None

    def observe(self, date: str) -> None:
        """Take the `Date` header of a response that has just arrived; empty if it has none."""
        if not date or date == self._date:
            return
        self._date = date
        try:
            # The header leaves out half a second, on average.
            offset = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
        except (ValueError, OverflowError):
            return
        last, self._measured = self._measured, offset
        # One that differs may be a proxy's, or have waited while this process was busy: the next one has to confirm it.
        if last is None or abs(offset - last) <= _TOLERANCE_S:
            self._offset = offset if abs(offset) > _TOLERANCE_S else 0.0

    def now(self) -> float:
        """Return the Unix time in seconds."""
        return time.time() + self._offset
