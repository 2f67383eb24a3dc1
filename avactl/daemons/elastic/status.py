"""State of a job for people and dashboards, as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from avactl.contracts.document import MAX_COUNT, dump
from avactl.contracts.elastic import (
    MAX_DATASETS,
    MAX_METRIC,
    MAX_METRICS,
    MAX_REPLACED,
    MAX_STRAGGLERS,
    DatasetProgress,
    ElasticProgress,
    ReplacedWorker,
)
from avactl.daemons.elastic.job import ElasticDataset, JobLedger
from avactl.daemons.elastic.progress import EpochResult
from avactl.daemons.elastic.workers import ElasticWorker, speed_shares
from avactl.kube.timestamps import timestamp

_MAX_WORKERS = 1000
"""Workers that are listed, the slowest first."""
_STRAGGLER_SHARE = 0.5
"""A worker with less than this part of the median speed straggles."""
_SPEED_WINDOW_S = 60.0
"""Seconds over which the speed of the job is measured."""
_MAX_POINTS = 64
"""Points of the curve; when there are more, neighbours are merged."""


def collect_status(job: JobLedger, now: float, lineage: str) -> dict[str, Any]:
    """Return datasets with their progress, and workers with their speed in records per second."""
    middle = _median_speed(job.workers.values())
    datasets = [
        {
            "name": each.definition.name,
            "after": each.definition.after,
            "epoch": each.progress.epoch,
            "epochs": _count_epochs(job, each),
            "tasks": each.definition.tasks,
            "done": each.progress.result.tasks,
            "held": len(each.holders),
            "records": each.progress.total_records,
            "metrics": each.progress.result.means(),
            "results": [
                {"epoch": result.epoch, "records": result.records, "metrics": result.means()}
                for result in each.progress.history
            ],
        }
        for each in job.by_number
    ]
    compared = speed_shares(job.workers.values())
    workers = [
        {
            "name": worker.name,
            "tasks": worker.tasks,
            "records": worker.records,
            "held": len(worker.held),
            "speed": round(worker.speed, 3),
            "straggles": _is_straggler(worker, compared.get(worker.index), middle),
            "silent": round(now - worker.seen, 1),
        }
        for worker in sorted(job.workers.values(), key=lambda each: each.speed)[:_MAX_WORKERS]
    ]
    return {
        "lineage": lineage,
        "complete": job.complete(),
        "datasets": datasets,
        "workers": len(job.workers),
        "medianSpeed": round(middle, 3),
        "listed": workers,
        "replaced": [
            {"name": each.name, "at": timestamp(each.at), "share": round(each.share, 3)} for each in job.told_to_leave
        ],
    }


def count_stragglers(job: JobLedger) -> int:
    """Return the number of workers that straggle."""
    return len(_find_stragglers(job.workers.values()))


def _find_stragglers(workers: Collection[ElasticWorker]) -> list[ElasticWorker]:
    """Return the workers that straggle, in the same order."""
    middle, compared = _median_speed(workers), speed_shares(workers)
    return [worker for worker in workers if _is_straggler(worker, compared.get(worker.index), middle)]


def _median_speed(workers: Collection[ElasticWorker]) -> float:
    speeds = [worker.speed for worker in workers if worker.speed]
    return median(speeds) if speeds else 0.0


def _is_straggler(worker: ElasticWorker, share: float | None, middle: float) -> bool:
    """`share`: its speed as a share of the median, if it has done enough; `middle`: median speed by the last tasks."""
    if share is not None:
        return share < _STRAGGLER_SHARE
    return bool(worker.speed) and worker.speed < _STRAGGLER_SHARE * middle


class _Point(NamedTuple):
    """A metric over some records."""

    records: int
    """Records of the job so far."""
    total: float
    """Sum of value × records."""
    weight: int


class Summary:
    """Progress of a job in a few kilobytes: counts, speed, and a curve of its loss."""

    def __init__(self, run: str) -> None:
        """`run`: the run of the job, so that readers know which one it is."""
        self._run = run
        self._samples: deque[tuple[float, int]] = deque()
        """Times and records of the last `_SPEED_WINDOW_S` seconds."""
        self._curve: list[_Point] = []
        self._metric = ""
        self._seen: dict[int, tuple[float, int]] = {}
        """By epoch, the part of the metric that is in the curve."""

    def observe(self, job: JobLedger, now: float) -> None:
        """Take a sample; `now` by the monotonic clock."""
        main = [each for each in job.by_number if not each.definition.after]
        self._samples.append((now, sum(each.progress.total_records for each in main)))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _SPEED_WINDOW_S:
            self._samples.popleft()
        if main:
            self._extend_curve(main[0])

    def _extend_curve(self, dataset: ElasticDataset) -> None:
        progress = dataset.progress
        results: list[EpochResult] = [*progress.history, progress.result]
        if not self._metric:
            known = [name for result in results for name in result.sums]
            self._metric = "loss" if "loss" in known else next(iter(known), "")
        records = progress.total_records - sum(result.records for result in results)
        for result in results:
            records += result.records
            total, weight = result.sums.get(self._metric, (0.0, 0))
            seen = self._seen.get(result.epoch, (0.0, 0))
            if weight > seen[1]:
                self._seen[result.epoch] = total, weight
                self._curve.append(_Point(records, total - seen[0], weight - seen[1]))
        self._seen = {result.epoch: self._seen.get(result.epoch, (0.0, 0)) for result in results}
        if len(self._curve) > _MAX_POINTS:
            odd = self._curve[len(self._curve) // 2 * 2 :]
            self._curve = [_merge_points(*pair) for pair in list(pairwise(self._curve))[::2]] + odd

    def speed(self) -> float | None:
        """Return the records per second; None if they were not observed for long enough."""
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        return (after - before) / (ended - began) if ended > began else None

    def text(self, job: JobLedger) -> str:
        """Return the document for the annotation."""
        workers = sorted(job.workers.values(), key=lambda worker: worker.speed)
        slow = [worker.name for worker in _find_stragglers(workers)]
        speed = self.speed() if self._samples else None
        points = ((point.records, _round_value(point.total / point.weight)) for point in self._curve)
        return dump(
            ElasticProgress(
                run=self._run,
                at=timestamp(),
                complete=job.complete(),
                workers=len(workers),
                stragglers=tuple(slow[:MAX_STRAGGLERS]),
                slow=len(slow),
                replaced=tuple(
                    ReplacedWorker(name=worker.name, at=timestamp(worker.at), share=round(worker.share, 3))
                    for worker in list(job.told_to_leave)[-MAX_REPLACED:]
                ),
                dropped=job.gradients.dropped,
                speed=None if speed is None else round(speed, 3),
                datasets=tuple(_summarize_dataset(job, dataset) for dataset in job.by_number[:MAX_DATASETS]),
                metric=self._metric,
                curve=tuple((min(records, MAX_COUNT), value) for records, value in points if _is_shown(value)),
            )
        )


def _summarize_dataset(job: JobLedger, dataset: ElasticDataset) -> DatasetProgress:
    definition, progress = dataset.definition, dataset.progress
    return DatasetProgress(
        name=definition.name,
        after=definition.after,
        epoch=progress.epoch,
        epochs=_count_epochs(job, dataset),
        tasks=definition.tasks,
        done=progress.result.tasks,
        records=min(progress.total_records, MAX_COUNT),
        size=min(definition.records, MAX_COUNT),
        metrics=_first_metrics(_latest_metrics(dataset)),
    )


def _count_epochs(job: JobLedger, dataset: ElasticDataset) -> int:
    """Return the epochs of a dataset, or of the one after whose epochs it is evaluated."""
    return job.datasets.get(dataset.definition.after, dataset).definition.epochs


def _merge_points(one: _Point, other: _Point) -> _Point:
    return _Point(other.records, one.total + other.total, one.weight + other.weight)


def _latest_metrics(dataset: ElasticDataset) -> dict[str, float]:
    """Return the metrics of the current epoch; right after its beginning, those of the epoch before."""
    progress = dataset.progress
    if progress.result.tasks or not progress.history:
        return progress.result.means()
    return progress.history[-1].means()


def _first_metrics(metrics: dict[str, float]) -> dict[str, float]:
    shown = {name: _round_value(value) for name, value in metrics.items() if _is_shown(value)}
    return dict(sorted(shown.items(), key=lambda metric: metric[0] != "loss")[:MAX_METRICS])


def _is_shown(value: float) -> bool:
    """Return False for what a diverging training reports: the sum of finite values need not be finite."""
    return abs(value) <= MAX_METRIC


def _round_value(value: float) -> float:
    return float(f"{value:.6g}")
