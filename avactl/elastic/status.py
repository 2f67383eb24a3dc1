"""State of a job for people and dashboards, as JSON."""

from __future__ import annotations

from statistics import median
from typing import Any

from avactl.elastic.job import Job

_WORKERS = 1000
"""Workers that are listed, the slowest first."""
_SLOW = 0.5
"""A worker with less than this part of the median speed straggles."""


def collect(job: Job, now: float, lineage: str) -> dict[str, Any]:
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
    workers = [
        {
            "name": worker.name,
            "tasks": worker.tasks,
            "records": worker.records,
            "held": len(worker.held),
            "speed": round(worker.speed, 3),
            "straggles": bool(worker.speed) and worker.speed < _SLOW * middle,
            "silent": round(now - worker.seen, 1),
        }
        for worker in sorted(job.workers.values(), key=lambda each: each.speed)[:_WORKERS]
    ]
    return {
        "lineage": lineage,
        "complete": job.complete(),
        "datasets": datasets,
        "workers": len(job.workers),
        "medianSpeed": round(middle, 3),
        "listed": workers,
    }
