"""Prometheus metrics of `avactl reconcile --watch`."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from avactl.apply.reconcile.reporting.report import StepResult

REGISTRY = CollectorRegistry()
_DURATION_BUCKETS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)

LEADER = Gauge("avactl_reconcile_leader", "1 on the active replica, 0 on standbys.", registry=REGISTRY)
RUNS = Counter("avactl_reconcile_runs_total", "Runs, by result: ok, failed.", ["result"], registry=REGISTRY)
RUN_SECONDS = Histogram(
    "avactl_reconcile_run_seconds",
    "Duration of a run, from the first read to the last write.",
    buckets=_DURATION_BUCKETS_S,
    registry=REGISTRY,
)
OBJECTS = Gauge("avactl_reconcile_objects", "Objects by their state after the last run.", ["state"], registry=REGISTRY)
HEALTH = Gauge("avactl_reconcile_unhealthy_objects", "Objects that are not ready.", ["state"], registry=REGISTRY)
DRIFT = Counter("avactl_reconcile_drift_total", "Objects with drift corrected, by kind.", ["kind"], registry=REGISTRY)
WRITES = Counter("avactl_reconcile_writes_total", "Write requests.", registry=REGISTRY)
SUCCESS = Gauge(
    "avactl_reconcile_last_success_timestamp_seconds",
    "Unix time at which the cluster last matched git.",
    registry=REGISTRY,
)
COMMIT = Gauge("avactl_reconcile_commit_info", "Last applied commit.", ["commit"], registry=REGISTRY)
BROKEN = Gauge("avactl_reconcile_commit_broken", "1 while the newest commit does not compile.", registry=REGISTRY)
GIT_ERRORS = Counter("avactl_reconcile_git_errors_total", "Failed git fetches.", registry=REGISTRY)


def count(result: StepResult, seconds: float, writes: int) -> None:
    """Record the metrics of one run."""
    RUNS.labels("ok" if result.complete else "failed").inc()
    RUN_SECONDS.observe(seconds)
    WRITES.inc(writes)
    if result.steps:
        OBJECTS.clear()
        for state, number in result.counts().items():
            OBJECTS.labels(state).set(number)
    for step in result.drift:
        DRIFT.labels(step.key.kind).inc()
    if result.complete:
        SUCCESS.set(time.time())
        COMMIT.clear()
        COMMIT.labels(result.commit).set(1)
