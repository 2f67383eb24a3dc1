"""Waiting in tests: what a time-out says, and what makes deadlines longer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tools.waiting import patience, wait_until, wait_until_async


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PATIENCE", "0.0001")


def test_the_first_true_value_is_returned(tmp_path: Path) -> None:
    values = iter([0, None, "", 7, 8])
    assert wait_until(lambda: next(values)) == 7

    async def run() -> int | str | None:
        return await wait_until_async(lambda: next(values))

    assert asyncio.run(run()) == 8


@pytest.mark.usefixtures("hasty")
def test_a_time_out_says_what_was_awaited_and_the_last_value() -> None:
    pods: list[str] = []
    with pytest.raises(TimeoutError) as error:
        wait_until(lambda: len(pods) > 3 and pods, details=lambda: "the end of the log")
    assert str(error.value).splitlines() == [
        'waited for 0.012 s: wait_until(lambda: len(pods) > 3 and pods, details=lambda: "the end of the log")',
        "last value: False",
        "the end of the log",
    ]
    with pytest.raises(TimeoutError, match=r"^waited for 0\.012 s: four pods\nlast value: \[\]$"):
        wait_until(lambda: pods, "four pods")
    with pytest.raises(TimeoutError, match="four pods"):
        asyncio.run(wait_until_async(lambda: pods, "four pods"))


def test_what_cannot_come_true_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^gave up \(\['ended'\]\): the process is ready"):
        wait_until(lambda: False, "the process is ready", failed=lambda: ["ended"])
    assert time.monotonic() - began < patience()


def test_one_variable_makes_all_deadlines_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patience(2.0) == 2.0
    monkeypatch.setenv("AVACTL_PATIENCE", "3")
    assert patience(2.0) == 6.0
