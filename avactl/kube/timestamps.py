"""Times as Kubernetes writes them: RFC 3339 in UTC (metav1.Time, metav1.MicroTime)."""

from __future__ import annotations

import time
from datetime import UTC, datetime

MAX_CLOCK_SKEW_S = 3600.0
"""Seconds by which the clock that wrote a time may have been ahead. A time further ahead is no time at all."""


def timestamp(seconds: float | None = None, timespec: str = "seconds") -> str:
    """Return a Unix time, by default the current one, as `2026-01-31T09:30:00Z`.

    `timespec` is that of `datetime.isoformat`: `microseconds` gives a MicroTime.
    """
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def unix_time(text: str) -> float:
    """Return a timestamp in Unix seconds. Raises ValueError, and OverflowError beyond the calendar."""
    return datetime.fromisoformat(text).timestamp()


def unix_time_or(default: float, text: str) -> float:
    """Return a timestamp in Unix seconds; the default if it is none, or beyond the calendar."""
    try:
        return unix_time(text)
    except (ValueError, OverflowError):
        return default


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds from a timestamp until `now`."""
    return now.timestamp() - unix_time(text)
