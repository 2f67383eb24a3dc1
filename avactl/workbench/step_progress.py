"""Progress that a script prints, one JSON object in a line:

    {"avactl_progress": {"step": 1200, "steps": 5000, "records": 256, "loss": 0.412}}

Scripts may print anything: a line is bounded, and so is every value in it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from avactl.base.terminal import amount_text, duration_text, shorten_middle, visible_text

_OBJECT_START = re.compile(r'\{\s{0,8}"avactl_progress"\s{0,8}:')
_MAX_LINE_LENGTH = 4096
"""Characters of the object."""
_MAX_NUMBER = 10**15
"""Largest count and largest magnitude of a value."""
_MIN_SPEED = 1e-6
"""Steps per second."""
_METRICS, _NAME = 8, 63
_KNOWN_KEYS = ("step", "steps", "epoch", "epochs", "records", "speed")
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # NaN is no JSON, but Python writes it


class StepProgress(NamedTuple):
    """Progress in steps."""

    step: int
    """Finished steps."""
    steps: int
    """Steps of the whole training; 0 if unknown."""
    epoch: int
    """The current epoch, from 1; 0 if unknown."""
    epochs: int
    records: float
    """Records of a step, over all workers; 0 if unknown."""
    speed: float | None
    """Steps per second."""
    metrics: dict[str, float]

    @property
    def metric(self) -> str:
        """Name of the metric that is shown: the loss, or else the first one; empty without metrics."""
        return "loss" if "loss" in self.metrics else next(iter(self.metrics), "")

    @property
    def fraction(self) -> float | None:
        """Part of all steps that is done, 0 to 1."""
        return min(1.0, self.step / self.steps) if self.steps else None

    @property
    def remaining(self) -> float | None:
        """Seconds until all steps are done, at the current speed."""
        return max(0, self.steps - self.step) / self.speed if self.steps and self.speed else None

    @property
    def records_per_second(self) -> float | None:
        """Records per second, over all workers."""
        return self.speed * self.records if self.speed is not None and self.records else None

    @property
    def rate(self) -> str:
        """The speed for people, with its unit; empty if it is unknown."""
        if self.records_per_second is not None:
            return f"{amount_text(self.records_per_second)} records/s"
        return "" if self.speed is None else f"{amount_text(self.speed)} steps/s"

    def __str__(self) -> str:
        of = "" if self.fraction is None else f" of {self.steps:,} ({100 * self.fraction:.0f}%)"
        parts = [f"step {self.step:,}{of}"]
        if self.epoch:
            parts.append(f"epoch {self.epoch:,}" + (f" of {self.epochs:,}" if self.epochs else ""))
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        parts += [self.rate, "" if self.remaining is None else f"{duration_text(self.remaining)} left"]
        return ", ".join(filter(None, parts))


def read(line: str) -> StepProgress | None:
    """Return the progress in a line, which a launcher or logger may have put words before; None if there is none."""
    found = _OBJECT_START.search(line)
    if found is None:
        return None
    try:
        whole, _ = _DECODER.raw_decode(line[found.start() : found.start() + _MAX_LINE_LENGTH])
        data = whole["avactl_progress"]
    except (ValueError, RecursionError, KeyError):
        return None
    if not isinstance(data, dict) or (step := _count(data.get("step"))) is None:
        return None
    metrics: dict[str, float] = {}
    for key, value in list(data.items())[: 4 * _METRICS]:
        number = None if key in _KNOWN_KEYS else _finite_number(value)
        if number is not None and len(metrics) < _METRICS:
            metrics[shorten_middle(visible_text(key[: 4 * _NAME]), _NAME)] = number
    speed = _finite_number(data.get("speed"))
    return StepProgress(
        step=step,
        steps=_count(data.get("steps")) or 0,
        epoch=_count(data.get("epoch")) or 0,
        epochs=_count(data.get("epochs")) or 0,
        records=max(0.0, _finite_number(data.get("records")) or 0.0),
        speed=speed if speed is not None and speed >= _MIN_SPEED else None,
        metrics=metrics,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else None


def _finite_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MAX_NUMBER and math.isfinite(value) else None
