"""Schedules in five fields of cron: minute, hour, day of the month, month, day of the week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_FIELD_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_HORIZON = timedelta(days=8)
"""Runs that were missed while the daemon was away for longer are skipped."""
_LEAP_HORIZON = timedelta(days=8 * 366)
"""How far back the last time is looked for: a leap day, also around 2100."""


def parse_cron(text: str) -> tuple[frozenset[int], ...]:
    """Return the numbers that each field allows. Raises ValueError."""
    fields = text.split()
    if len(fields) != len(_FIELD_BOUNDS):
        raise ValueError(f"`{text}` has {len(fields)} fields; a schedule has 5")
    return tuple(_parse_field(field, *bounds) for field, bounds in zip(fields, _FIELD_BOUNDS, strict=True))


def fires_between(text: str, since: float, until: float) -> bool:
    """Return True if a schedule in UTC has a minute in (since, until], Unix seconds. Raises ValueError."""
    end = datetime.fromtimestamp(until, UTC).replace(second=0, microsecond=0)
    start = max(datetime.fromtimestamp(since, UTC), end - _HORIZON)
    return _newest_before(_parse_schedule(text), end, start) is not None


def last_due(text: str, zone: str, now: float) -> str:
    """Return the newest minute up to `now` (Unix seconds) of a schedule in a time zone: `2026-11-24T02:00Z`.

    "" if there is none. Local times that a change of clocks leaves out are left out; those that it repeats count once.
    Raises ValueError for a schedule or zone that does not exist.
    """
    return _last_due(text, zone, int(now) // 60)


@lru_cache(maxsize=1000)
def _last_due(text: str, zone: str, minute: int) -> str:
    try:
        place = ZoneInfo(zone)
    except (KeyError, OSError):
        raise ValueError(f"unknown time zone `{zone}`") from None
    fields = _parse_schedule(text)
    # Without a zone: the times that clocks on the wall show, as the schedule has them.
    moment = datetime.fromtimestamp(minute * 60, place).replace(tzinfo=None, fold=0)
    earliest = moment - _LEAP_HORIZON
    while (found := _newest_before(fields, moment, earliest)) is not None:
        there = found.replace(tzinfo=place).astimezone(UTC)
        if there.astimezone(place).replace(tzinfo=None, fold=0) == found:
            return f"{there:%Y-%m-%dT%H:%MZ}"
        moment = found - timedelta(minutes=1)
    return ""


def _newest_before(fields: tuple[frozenset[int], ...], moment: datetime, start: datetime) -> datetime | None:
    """Return the newest minute of a schedule in (start, moment]."""
    minutes, hours, days, months, weekdays = fields
    either = len(days) < 31 and len(weekdays) < 7
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
            return moment
    return None


def _parse_field(text: str, low: int, high: int) -> frozenset[int]:
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
def _parse_schedule(text: str) -> tuple[frozenset[int], ...]:
    return parse_cron(text)
