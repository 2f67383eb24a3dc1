"""Progress of an elastic job, which its master writes, for those who look at jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.document import Contract, ContractPart, Count, absent

MAX_DATASETS, MAX_METRICS, MAX_STRAGGLERS, MAX_REPLACED, MAX_POINTS = 8, 8, 8, 4, 256
MAX_METRIC = 1e15
"""Largest magnitude of a metric: beyond it, differences of two values are no longer sure to be finite."""
_MAX_NAME_LENGTH = 63


def _clean_name(name: str) -> str:
    # The names of workers and metrics come from scripts, and are shown on terminals and pages.
    return shorten_middle(visible_text(name), _MAX_NAME_LENGTH)


def _validate_time(text: str) -> str:
    try:
        if text:
            datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is not a time") from None
    return text


_Name = Annotated[str, Field(max_length=4 * _MAX_NAME_LENGTH + 1), AfterValidator(_clean_name)]
_Time = Annotated[str, Field(max_length=40), AfterValidator(_validate_time)]
"""RFC 3339; empty if it is unknown."""
_Metric = Annotated[float, Field(ge=-MAX_METRIC, le=MAX_METRIC)]
_Speed = Annotated[float, Field(ge=0, le=MAX_METRIC)]
"""Records per second."""


class DatasetProgress(ContractPart):
    """Progress in one dataset."""

    name: _Name
    after: _Name = absent("")
    """Dataset after whose epochs this one is evaluated; empty for training data."""
    epoch: Count = absent(0)
    """Finished epochs."""
    epochs: Count = absent(0)
    tasks: Count = absent(0)
    done: Count = absent(0)
    """Tasks of the current epoch that are done."""
    records: Count = absent(0)
    """Records of all epochs so far."""
    size: Count = absent(0)
    """Records of one epoch."""
    metrics: Annotated[Mapping[_Name, _Metric], Field(max_length=MAX_METRICS)] = absent({})


class ReplacedWorker(ContractPart):
    """A worker that was replaced because it was slow."""

    name: _Name
    at: _Time
    share: Annotated[float, Field(ge=0, le=1)]
    """Its speed, as a share of the median."""


class ElasticProgress(Contract):
    """Annotation `PROGRESS` of a job's ConfigMap. Everybody who may write ConfigMaps of the namespace can write it."""

    MAX_BYTES = 64 * 1024
    run: _Name = absent("")
    """Run of the training job; empty if it has no name."""
    at: _Time = absent("")
    complete: bool = absent(False)
    speed: _Speed | None = absent(None)
    workers: Count = absent(0)
    stragglers: Annotated[tuple[_Name, ...], Field(max_length=MAX_STRAGGLERS)] = absent(())
    """Workers with less than half of the median speed, the slowest first."""
    slow: Count = absent(0)
    """Number of stragglers."""
    replaced: Annotated[tuple[ReplacedWorker, ...], Field(max_length=MAX_REPLACED)] = absent(())
    """The last replaced workers."""
    datasets: Annotated[tuple[DatasetProgress, ...], Field(max_length=MAX_DATASETS)] = absent(())
    dropped: Count = absent(0)
    """Gradients that did not count, because their workers were late."""
    metric: _Name = absent("")
    """Name of the metric of `curve`."""
    curve: Annotated[tuple[tuple[Count, _Metric], ...], Field(max_length=MAX_POINTS)] = absent(())
    """Records so far, and the metric's mean since the point before."""
