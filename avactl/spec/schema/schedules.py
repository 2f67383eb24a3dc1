"""Schedules: five numeric fields of cron."""

from __future__ import annotations

import re

from avactl.spec.schema.values import bad

_CRON = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
"""Fields of a schedule and their bounds. Source: cron's crontab(5)."""
_CRON_PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?").fullmatch


def cron(value: str) -> str:
    """Check a schedule of five numeric cron fields."""
    fields = value.split(" ")
    if len(fields) != len(_CRON) or len(value) > 100:
        raise bad(
            f"`{value[:40]}` is not a schedule: it has five fields, separated by one space",
            "write `minute hour day month weekday`, e.g. `0 3 * * *` for every night at 3:00 UTC",
        )
    for (name, (low, high)), field in zip(_CRON.items(), fields, strict=True):
        for part in field.split(","):
            found = _CRON_PART(part)
            numbers = [int(number) for number in found.groups()[:2] if number] if found else []
            step = int(found[3]) if found and found[3] else 1
            if not found or step < 1 or numbers != sorted(numbers) or any(not low <= n <= high for n in numbers):
                raise bad(
                    f"`{part[:20]}` is not valid in the field `{name}` of a schedule",
                    f"write a number from {low} to {high}, a range `{low}-{high}`, `*`, or `*/2`",
                )
    days, months = _least(fields[2]), [_LENGTHS[month] for month in _numbers(fields[3], 12)]
    if fields[4] == "*" and days > max(months):
        raise bad(f"`{value}` is never: no such month has {days} days", f"write a day up to {max(months)}")
    return value


_LENGTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of the months, by number."""


def _numbers(field: str, high: int) -> list[int]:
    """Return the numbers that a valid field of a schedule names."""
    found: list[int] = []
    for part in field.split(","):
        first, _, step = part.partition("/")
        low, _, last = first.partition("-") if first != "*" else ("1", "-", str(high))
        found += range(int(low), int(last or (high if step else low)) + 1, int(step or 1))
    return found


def _least(field: str) -> int:
    return min(_numbers(field, 31))
