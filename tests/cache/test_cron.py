"""Schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from avactl.base.cron import fires_between, parse_cron


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "since", "until", "due"),
    [
        ("0 3 * * *", "2026-01-01T02:59:30", "2026-01-01T03:00:10", True),
        ("0 3 * * *", "2026-01-01T03:00:00", "2026-01-01T23:59:59", False),
        ("*/15 * * * *", "2026-01-01T03:01:00", "2026-01-01T03:14:59", False),
        ("*/15 * * * *", "2026-01-01T03:01:00", "2026-01-01T03:15:00", True),
        ("0 3 * * 7", "2026-01-03T12:00:00", "2026-01-04T12:00:00", True),  # a Sunday
        ("0 3 * * 1-5", "2026-01-03T00:00:00", "2026-01-04T12:00:00", False),
        ("0 0 1 * 1", "2026-01-01T12:00:00", "2026-01-05T12:00:00", True),  # a Monday, not the first
        ("0 0 31 12 *", "2020-01-01T00:00:00", "2026-06-01T00:00:00", False),
    ],
)
def test_a_schedule_fires_between_two_looks(schedule: str, since: str, until: str, due: bool) -> None:
    assert fires_between(schedule, at(since), at(until)) is due


@pytest.mark.parametrize("text", ["* * * *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *", "a * * * *"])
def test_a_wrong_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of `int` too
        parse_cron(text)
