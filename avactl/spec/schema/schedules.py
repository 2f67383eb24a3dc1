"""Schedules: five numeric fields of cron, and the time zone they are in."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import Model
from avactl.spec.schema.values import PositiveDuration, value_error

_CRON_FIELDS = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
"""Fields of a schedule and their bounds. Source: cron's crontab(5)."""
_CRON_PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?").fullmatch


def check_cron(value: str) -> str:
    """Check a schedule of five numeric cron fields."""
    fields = value.split(" ")
    if len(fields) != len(_CRON_FIELDS) or len(value) > 100:
        raise value_error(
            f"`{value[:40]}` is not a schedule: it has five fields, separated by one space",
            "write `minute hour day month weekday`, e.g. `0 3 * * *` for every night at 3:00 UTC",
        )
    for (name, (low, high)), field in zip(_CRON_FIELDS.items(), fields, strict=True):
        for part in field.split(","):
            found = _CRON_PART(part)
            numbers = [int(number) for number in found.groups()[:2] if number] if found else []
            step = int(found[3]) if found and found[3] else 1
            if not found or step < 1 or numbers != sorted(numbers) or any(not low <= n <= high for n in numbers):
                raise value_error(
                    f"`{part[:20]}` is not valid in the field `{name}` of a schedule",
                    f"write a number from {low} to {high}, a range `{low}-{high}`, `*`, or `*/2`",
                )
    days, months = _least_number(fields[2]), [_MONTH_LENGTHS[month] for month in _field_numbers(fields[3], 12)]
    if fields[4] == "*" and days > max(months):
        raise value_error(f"`{value}` is never: no such month has {days} days", f"write a day up to {max(months)}")
    return value


_MONTH_LENGTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of the months, by number."""


def _field_numbers(field: str, high: int) -> list[int]:
    """Return the numbers that a valid field of a schedule names."""
    found: list[int] = []
    for part in field.split(","):
        first, _, step = part.partition("/")
        low, _, last = first.partition("-") if first != "*" else ("1", "-", str(high))
        found += range(int(low), int(last or (high if step else low)) + 1, int(step or 1))
    return found


def _least_number(field: str) -> int:
    return min(_field_numbers(field, 31))


_IS_ZONE = re.compile(r"[A-Za-z]+(?:[_/+-][A-Za-z0-9]+)*").fullmatch


def _check_zone(value: str) -> str:
    from zoneinfo import available_timezones  # most compiles never need it

    known = available_timezones()
    if len(value) > 64 or not _IS_ZONE(value) or value == "Local" or (known and value not in known):
        near = next((zone for zone in sorted(known) if zone.lower() == value.lower()), "")
        near = near or next((zone for zone in sorted(known) if zone.lower().endswith(f"/{value.lower()}")), "")
        hint = f"did you mean `{near}`?" if near else "write a name such as `Europe/Berlin` or `Etc/UTC`"
        raise value_error(f"`{value[:64]}` is not a time zone of the IANA database", hint)
    return value


Cron = Annotated[
    str,
    AfterValidator(check_cron),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9*/,-]+( [0-9*/,-]+){4}$", "maxLength": 100}),
]


TimeZone = Annotated[
    str,
    AfterValidator(_check_zone),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z]+([_/+-][A-Za-z0-9]+)*$", "maxLength": 64}),
]


_Kept = Annotated[int, Field(ge=0, le=100)]


class Schedule(Model):
    """Times at which a job runs."""

    cron: Cron = Field(description="`minute hour day month weekday`, numbers as in crontab(5).")
    time_zone: TimeZone = Field("Etc/UTC", description="Time zone of `cron`, such as `Europe/Berlin`.")
    concurrency_policy: Literal["Forbid", "Replace", "Allow"] = Field(
        "Forbid", description="A run that is due while one is active: skipped, in its place, or beside it."
    )
    starting_deadline: PositiveDuration | None = Field(
        None, description="How late a run may begin, if its time was missed. Default: it may always."
    )
    keep_succeeded: _Kept = Field(3, description="Number of succeeded runs to keep.")
    keep_failed: _Kept = Field(1, description="Number of failed runs to keep.")
