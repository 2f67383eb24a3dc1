"""State of a job for people and dashboards, as JSON."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import orjson

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
_MAX_DATASETS, _MAX_METRICS, _MAX_STRAGGLERS, _MAX_REPLACED = 8, 8, 8, 4
"""Entries of the summary, which is an annotation."""


def collect_status(job: JobLedger, now: float, lineage: str) -> dict[str, Any]:
    """Return datasets with their progress, and workers with their speed in records per second."""
    speeds = [worker.speed for worker in job.workers.values() if worker.speed]
    middle = median(speeds) if speeds else 0.0
    datasets = [
        {
            "name": each.definition.name,
            "after": each.definition.after,
            "epoch": each.progress.epoch,
            "epochs": job.datasets.get(each.definition.after, each).definition.epochs,
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
    workers = job.workers.values()
    speeds, compared = [worker.speed for worker in workers if worker.speed], speed_shares(workers)
    middle = median(speeds) if speeds else 0.0
    return sum(_is_straggler(worker, compared.get(worker.index), middle) for worker in workers)


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
        """Return the JSON. Times are RFC 3339, speeds records per second."""
        status = collect_status(job, 0.0, "")
        slow = [worker["name"] for worker in status["listed"] if worker["straggles"]]
        speed = self.speed() if self._samples else None
        data = {
            "run": self._run,
            "at": timestamp(),
            "complete": status["complete"],
            "workers": status["workers"],
            "stragglers": slow[:_MAX_STRAGGLERS],
            "slow": len(slow),
            "replaced": status["replaced"][-_MAX_REPLACED:],
            "dropped": job.gradients.dropped,
            "speed": None if speed is None else round(speed, 3),
            "datasets": [
                {
                    **{key: each[key] for key in ("name", "after", "epoch", "epochs", "tasks", "done", "held")},
                    "records": each["records"],
                    "size": dataset.definition.records,
                    "metrics": _first_metrics(_latest_metrics(dataset)),
                }
                for dataset, each in zip(job.by_number[:_MAX_DATASETS], status["datasets"], strict=False)
            ],
            "metric": self._metric,
            "curve": [[each.records, _round_value(each.total / each.weight)] for each in self._curve],
        }
        return orjson.dumps(data).decode()


def _merge_points(one: _Point, other: _Point) -> _Point:
    return _Point(other.records, one.total + other.total, one.weight + other.weight)


def _latest_metrics(dataset: ElasticDataset) -> dict[str, float]:
    """Return the metrics of the current epoch; right after its beginning, those of the epoch before."""
    progress = dataset.progress
    if progress.result.tasks or not progress.history:
        return progress.result.means()
    return progress.history[-1].means()


def _first_metrics(metrics: dict[str, float]) -> dict[str, float]:
    chosen = sorted(metrics.items(), key=lambda each: each[0] != "loss")[:_MAX_METRICS]
    return {name: _round_value(value) for name, value in chosen}


def _round_value(value: float) -> float:
    return float(f"{value:.6g}")
