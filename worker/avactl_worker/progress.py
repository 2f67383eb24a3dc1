"""Progress of a training script, printed for `avactl jobs`: in jobs of any strategy, also without a job master."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from typing import Any

_EVERY = 5.0
"""Seconds between two lines."""
_WINDOW = 60.0
"""Seconds over which the speed is measured."""
_METRICS, _NAME = 8, 63
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "AVACTL_INDEX")
"""Variables with the number of this process: of launchers, and of the pod."""


class _Reporter:
    """The lines of this process."""

    def __init__(self) -> None:
        self._printed = -math.inf
        self._step = -1
        self._samples: deque[tuple[float, int]] = deque()
        """Times and steps of the last lines."""

    def report(self, step: int, steps: int | None, about: dict[str, Any], metrics: dict[str, Any]) -> None:
        now, last = time.monotonic(), steps is not None and step >= steps
        if now - self._printed < _EVERY and not (last and step != self._step):
            return
        if step < self._step:
            self._samples.clear()  # training has begun anew, or from a checkpoint
        self._samples.append((now, step))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW:
            self._samples.popleft()
        self._printed, self._step = now, step
        found = {"step": step, "steps": steps, **about}
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        if ended > began and after > before:
            found["speed"] = (after - before) / (ended - began)
        for name, value in list(metrics.items())[:_METRICS]:
            found.setdefault(str(name)[:_NAME], float(value))
        kept = {name: _plain(value) for name, value in found.items() if value is not None and math.isfinite(value)}
        try:
            sys.stdout.write(json.dumps({"avactl_progress": kept}) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError):
            pass  # training goes on without a terminal


def _plain(value: Any) -> Any:
    """Return a number as an int if it is a whole one, otherwise with six digits."""
    return int(value) if value == int(value) else float(f"{value:.6g}")


_reporter = _Reporter()


def is_first() -> bool:
    """Return True on the process of a job whose progress is shown: rank 0."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def report(
    step: int,
    steps: int | None = None,
    *,
    records: float | None = None,
    epoch: int | None = None,
    epochs: int | None = None,
    **metrics: Any,
) -> None:
    """Tell `avactl jobs` how far training is. Call it after each step, on any number of processes.

    `steps` is the number of all steps, `records` that of the records of one step, over all workers. `epoch` counts from
    1. `metrics` are numbers, such as `loss`; they are converted with `float` only when they are shown. The first
    process prints a line of JSON every 5 s, and after the last step.
    """
    if is_first():
        _reporter.report(int(step), steps, {"records": records, "epoch": epoch, "epochs": epochs}, metrics)
