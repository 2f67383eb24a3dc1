"""Metrics of a validation: reading what a pod has written, and comparing it with the bounds of a pipeline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from avactl.contracts.delivery import MetricBound

MAX_TEXT = 4096
"""Longest text that Kubernetes keeps of a container, in bytes."""
MAX_NAMES = 64
_MAX_NUMBER = 1e300
_IS_METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}").fullmatch


class MetricsError(ValueError):
    """The text of a validation is no JSON object of numbers."""


class Measured(NamedTuple):
    """Metrics of a candidate, and those of the live version on the same data, if the validation measured it."""

    values: Mapping[str, float]
    live: Mapping[str, float]


def parse_metrics(text: str) -> Measured:
    """Read what a pod has written. Raises MetricsError."""
    if len(text) > MAX_TEXT:
        raise MetricsError(f"the metrics have over {MAX_TEXT} bytes")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MetricsError(f"the metrics are not JSON: {error.msg}" if text.strip() else "no metrics") from None
    if not isinstance(data, dict):
        raise MetricsError("the metrics are not a JSON object")
    live = data.pop("live", {})
    if not isinstance(live, dict):
        raise MetricsError("`live` is not a JSON object")
    return Measured(_finite_numbers(data), _finite_numbers(live))


def _finite_numbers(data: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers with names as specs have them; any other metric is as one that is missing."""
    found = {
        name: float(value)
        for name, value in list(data.items())[:MAX_NAMES]
        if _IS_METRIC_NAME(name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < _MAX_NUMBER
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def missed_bounds(
    bounds: Iterable[MetricBound], measured: Measured, published: Mapping[str, float] | None
) -> list[str]:
    """Return the bounds that a candidate misses, each with its numbers.

    `published`: the metrics that the live version was published with; None if no version is live. What the validation
    measured of the live version comes first.
    """
    found = []
    for bound in bounds:
        value = measured.values.get(bound.name)
        if value is None:
            found.append(f"{bound.name}: missing")
            continue
        if bound.min is not None and value < bound.min:
            found.append(f"{bound.name}: {value:g}, at least {bound.min:g}")
        if bound.max is not None and value > bound.max:
            found.append(f"{bound.name}: {value:g}, at most {bound.max:g}")
        if (bound.at_least is None and bound.at_most is None) or published is None:
            continue
        live = measured.live.get(bound.name, published.get(bound.name))
        if live is None:
            continue  # the live version is from before this bound
        # Relative to the size of the value: for negative metrics, `atLeast: 0.99` allows 1% less, too.
        if bound.at_least is not None and value < live - abs(live) * (1 - bound.at_least):
            found.append(f"{bound.name}: {value:g}, at least {bound.at_least:g} × {live:g} of the live version")
        if bound.at_most is not None and value > live + abs(live) * (bound.at_most - 1):
            found.append(f"{bound.name}: {value:g}, at most {bound.at_most:g} × {live:g} of the live version")
    return found
