"""Progress of a job: of an elastic one as its master writes it into an annotation, of others as scripts print it.

Every user who can write ConfigMaps of the namespace can write the annotation: everything in it is bounded, and texts
are cleaned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import orjson

from avactl.base.terminal import amount_text, shorten_middle, visible_text
from avactl.workbench.step_progress import StepProgress

_MAX_BYTES = 65_536
"""Characters of the annotation that are parsed."""
_MAX_NAME_LENGTH = 63
_MAX_NUMBER = 10**15
"""Largest count and largest magnitude of a metric."""
_DATASETS, _METRICS, _STRAGGLERS, _REPLACED, _POINTS = 8, 8, 8, 4, 256
_T = TypeVar("_T")


class Data(NamedTuple):
    """Progress in one dataset."""

    name: str
    after: str
    """Dataset after whose epochs this one is evaluated; empty for training data."""
    epoch: int
    """Finished epochs."""
    epochs: int
    tasks: int
    done: int
    """Tasks of the current epoch that are done."""
    records: int
    """Records of all epochs so far."""
    size: int
    """Records of one epoch."""
    metrics: dict[str, float]


class ReplacedWorker(NamedTuple):
    """A worker that was replaced because it was slow."""

    name: str
    at: str
    """Time, RFC 3339; empty if it is malformed."""
    share: float | None
    """Its speed, as a share of the median."""


class JobProgress(NamedTuple):
    """Progress of a job, at a time."""

    run: str
    """Run of the training job; empty if it has no name."""
    at: str
    """Time, RFC 3339; empty if it is malformed."""
    complete: bool
    speed: float | None
    """Records per second."""
    workers: int
    stragglers: list[str]
    """Workers with less than half of the median speed; at most eight."""
    slow: int
    """Number of stragglers."""
    replaced: list[ReplacedWorker]
    """The last replaced workers, at most four."""
    datasets: list[Data]
    dropped: int
    """Gradients that did not count, because their workers were late."""
    metric: str
    """Name of the metric of `curve`."""
    curve: list[tuple[int, float]]
    """Records so far (steps, if the script prints these), and the metric's mean since the point before."""
    steps: StepProgress | None = None
    """Progress that the script printed, if there is none in datasets."""

    @property
    def training(self) -> list[Data]:
        """Datasets that are not for evaluation."""
        return [data for data in self.datasets if not data.after]

    @property
    def fraction(self) -> float | None:
        """Part of all records of all epochs that is done, 0 to 1; None if nothing is declared yet."""
        if self.steps is not None:
            return self.steps.fraction
        total = sum(data.size * data.epochs for data in self.training)
        return min(1.0, sum(data.records for data in self.training) / total) if total else None

    @property
    def remaining(self) -> float | None:
        """Seconds until all records are done, at the current speed; None if it is unknown."""
        if self.steps is not None:
            return self.steps.remaining
        if self.complete:
            return 0.0
        total = sum(data.size * data.epochs for data in self.training)
        left = max(0, total - sum(data.records for data in self.training))
        return left / self.speed if self.speed and total else None

    @property
    def epoch(self) -> tuple[int, int]:
        """The current epoch, from 1, and the number of epochs; 0 if unknown."""
        if self.steps is not None:
            return self.steps.epoch, self.steps.epochs
        return next(((min(data.epoch + 1, data.epochs), data.epochs) for data in self.training if data.epochs), (0, 0))

    @property
    def rate(self) -> str:
        """Records per second, or steps with their unit; empty if it is unknown."""
        if self.speed is not None:
            return amount_text(self.speed)
        return "" if self.steps is None else self.steps.rate

    @property
    def loss(self) -> float | None:
        """Newest value of the metric."""
        if self.curve:
            return self.curve[-1][1]
        for data in self.training:
            if self.metric in data.metrics:
                return data.metrics[self.metric]
        return None


def without_master(master: JobProgress | None) -> JobProgress:
    """Return progress without data, with what a master knows about workers if there is one."""
    if master is not None:
        return master
    return JobProgress(
        run="",
        at="",
        complete=False,
        speed=None,
        workers=0,
        stragglers=[],
        slow=0,
        replaced=[],
        datasets=[],
        dropped=0,
        metric="",
        curve=[],
    )


def read(metadata: Mapping[str, Any], annotation: str) -> JobProgress | None:
    """Return the progress in an object's annotation; None without one, or if it is malformed."""
    text = (metadata.get("annotations") or {}).get(annotation)
    if not isinstance(text, str) or len(text) > _MAX_BYTES:
        return None
    try:
        data = orjson.loads(text)
        if not isinstance(data, dict):
            return None
        return JobProgress(
            run=_parse_text(data.get("run")),
            at=_parse_time(data.get("at")),
            complete=data.get("complete") is True,
            speed=_parse_value(data.get("speed")),
            workers=_count(data.get("workers")),
            stragglers=_list(data.get("stragglers"), _parse_text, _STRAGGLERS),
            slow=_count(data.get("slow")),
            replaced=_list(data.get("replaced"), _parse_replaced, _REPLACED),
            datasets=_list(data.get("datasets"), _parse_dataset, _DATASETS),
            dropped=_count(data.get("dropped")),
            metric=_parse_text(data.get("metric")),
            curve=[point for point in _list(data.get("curve"), _parse_point, _POINTS) if point is not None],
        )
    except (ValueError, TypeError, RecursionError):
        return None


def _parse_dataset(item: Any) -> Data:
    if not isinstance(item, dict):
        raise TypeError("not a dataset")
    metrics = item.get("metrics") if isinstance(item.get("metrics"), dict) else {}
    known = {_parse_text(name): _parse_value(value) for name, value in list((metrics or {}).items())[:_METRICS]}
    return Data(
        name=_parse_text(item.get("name")),
        after=_parse_text(item.get("after")),
        epoch=_count(item.get("epoch")),
        epochs=_count(item.get("epochs")),
        tasks=_count(item.get("tasks")),
        done=_count(item.get("done")),
        records=_count(item.get("records")),
        size=_count(item.get("size")),
        metrics={name: value for name, value in known.items() if value is not None},
    )


def _parse_replaced(item: Any) -> ReplacedWorker:
    if not isinstance(item, dict):
        raise TypeError("not a worker")
    return ReplacedWorker(_parse_text(item.get("name")), _parse_time(item.get("at")), _parse_value(item.get("share")))


def _list(value: Any, parse: Callable[[Any], _T], most: int) -> list[_T]:
    return [parse(item) for item in value[:most]] if isinstance(value, list) else []


def _parse_point(value: Any) -> tuple[int, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    found = _parse_value(value[1])
    return None if found is None else (_count(value[0]), found)


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0


def _parse_value(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) <= _MAX_NUMBER else None


def _parse_text(value: Any) -> str:
    return (
        shorten_middle(visible_text(value[: 4 * _MAX_NAME_LENGTH]), _MAX_NAME_LENGTH) if isinstance(value, str) else ""
    )


def _parse_time(value: Any) -> str:
    from avactl.kube.timestamps import unix_time

    if not isinstance(value, str) or len(value) > 40:
        return ""
    try:
        unix_time(value)
    except (ValueError, OverflowError):
        return ""
    return value
