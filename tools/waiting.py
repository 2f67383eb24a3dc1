"""Waiting in tests and benchmarks for conditions that other processes, threads and tasks fulfil.

A deadline is not a measurement: it only stops a test that hangs, and says why. `AVACTL_PATIENCE=3` makes every deadline
three times as long, for machines under load.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 120.0
"""Default deadline: a second on an idle machine can become a minute on one with eight test runs."""
_FIRST_POLL_S, _POLL_S = 0.002, 0.1
_MAX_SHOWN_CHARS = 2000


def patience(seconds: float = PATIENCE_S) -> float:
    """Return a deadline, scaled by `AVACTL_PATIENCE`."""
    return seconds * float(os.environ.get("AVACTL_PATIENCE", "1"))


def wait_until(
    condition: Callable[[], T | None],
    awaited: str = "",
    *,
    timeout: float = PATIENCE_S,
    poll: float = _POLL_S,
    details: Callable[[], object] | None = None,
    failed: Callable[[], object] = lambda: None,
) -> T:
    """Return the first true value of a condition.

    Raises TimeoutError with what is awaited (the source of the condition, unless given), its last value and `details`;
    at once if `failed` is true: then it cannot come true any more.
    """
    deadline = time.monotonic() + patience(timeout)
    for pause in _pauses(poll):
        if value := condition():
            return value
        if (reason := failed()) or time.monotonic() > deadline:
            raise TimeoutError(_message(condition, awaited, value, timeout, reason, details))
        time.sleep(pause)
    raise AssertionError("not reached")


async def wait_until_async(
    condition: Callable[[], T | None],
    awaited: str = "",
    *,
    timeout: float = PATIENCE_S,
    details: Callable[[], object] | None = None,
) -> T:
    """As `wait_until`, for a condition that other tasks of the event loop fulfil."""
    deadline = time.monotonic() + patience(timeout)
    for pause in _pauses(_POLL_S):
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(_message(condition, awaited, value, timeout, None, details))
        await asyncio.sleep(pause)
    raise AssertionError("not reached")


def _pauses(longest: float) -> Iterator[float]:
    """Yield pauses that become longer: most conditions come true soon, and looking costs CPU time."""
    pause = min(_FIRST_POLL_S, longest)
    while True:
        yield pause
        pause = min(1.5 * pause, longest)


def _message(
    condition: Callable[[], Any],
    awaited: str,
    value: object,
    timeout: float,
    reason: object,
    details: Callable[[], object] | None,
) -> str:
    ended = f"gave up ({reason})" if reason else f"waited for {patience(timeout):g} s"
    lines = [f"{ended}: {awaited or _source(condition)}", f"last value: {_shortened(repr(value))}"]
    return "\n".join([*lines, str(details())] if details is not None else lines)


def _source(condition: Callable[[], Any]) -> str:
    try:
        return _shortened(" ".join(inspect.getsource(condition).split()))
    except (OSError, TypeError):  # a bound method of C, or no source
        return repr(condition)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
