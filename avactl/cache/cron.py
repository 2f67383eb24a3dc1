"""Schedules in five fields of cron, in UTC: minute, hour, day of the month, month, day of the week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_HORIZON = timedelta(days=8)
"""Runs that were missed while the daemon was away for longer are skipped."""


def parse_cron(text: str) -> tuple[frozenset[int], ...]:
    """Return the numbers that each field allows. Raises ValueError."""
    fields = text.split()
    if len(fields) != len(_BOUNDS):
        raise ValueError(f"`{text}` has {len(fields)} fields; a schedule has 5")
    return tuple(_field(field, *bounds) for field, bounds in zip(fields, _BOUNDS, strict=True))


def fires(text: str, since: float, until: float) -> bool:
    """Return True if a schedule has a minute in (since, until], Unix seconds. Raises ValueError."""
    minutes, hours, days, months, weekdays = _parsed(text)
    end = datetime.fromtimestamp(until, UTC).replace(second=0, microsecond=0)
    start = max(datetime.fromtimestamp(since, UTC), end - _HORIZON)
    either = len(days) < 31 and len(weekdays) < 7
    moment = end
    while moment > start:
        month_day, week_day = moment.day in days, moment.isoweekday() % 7 in weekdays
        # With both fields restricted, either is enough, as in crontab(5).
        if moment.month not in months or not (month_day or week_day if either else month_day and week_day):
            moment = moment.replace(hour=0, minute=0) - timedelta(minutes=1)
        elif moment.hour not in hours:
            moment = moment.replace(minute=0) - timedelta(minutes=1)
        elif moment.minute not in minutes:
            moment -= timedelta(minutes=1)
        else:
            return True
    return False


def _field(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start = int(first)
            end = int(last) if dash else high if slash else start
        width = int(step) if slash else 1
        if not low <= start <= end <= high or width < 1:
            raise ValueError(f"`{part}` is not between {low} and {high}")
        found.update(range(start, end + 1, width))
    return frozenset(0 if high == 7 and number == 7 else number for number in found)


@lru_cache(maxsize=1000)
def _parsed(text: str) -> tuple[frozenset[int], ...]:
    return parse_cron(text)
