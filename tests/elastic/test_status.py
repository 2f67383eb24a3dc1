"""The summary of a job's progress."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from avactl.contracts.document import load
from avactl.contracts.elastic import MAX_DATASETS, MAX_METRICS, ElasticProgress
from avactl.daemons.elastic.job import Assignment, JobLedger
from avactl.daemons.elastic.status import Summary
from tests.elastic.test_definition import definition


def do(job: JobLedger, tasks: int, first_loss: float = 0.0) -> None:
    """Do tasks of two records, the loss of which counts up."""
    worker = job.join("w", 1, 0.0)
    for number in range(tasks):
        found = job.take(worker, ["train"], 0.0)
        assert isinstance(found, Assignment)
        job.finish(worker, found.key, {"other": -1.0, "loss": first_loss + number}, 0.0)


def text(summary: Summary, job: JobLedger) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(summary.text(job))
    return found


def test_the_curve_has_the_mean_between_two_samples() -> None:
    job, summary = JobLedger(), Summary("run")
    job.register(definition([10], 2, epochs=4), 0.0)
    assert "speed" not in text(summary, job)
    for second, tasks in enumerate((0, 2, 0, 4, 1)):
        do(job, tasks, 10.0 * second)
        summary.observe(job, float(second))
    found = text(summary, job)
    # The fourth sample spans the end of an epoch of five tasks: one point for each epoch.
    assert found["curve"] == [[4, 10.5], [10, 31.0], [12, 33.0], [14, 40.0]]
    assert (found["metric"], found["speed"], found["run"]) == ("loss", 3.5, "run")
    (data,) = found["datasets"]
    assert (data["epoch"], data["done"], data["records"], data["size"]) == (1, 2, 14, 10)
    assert data["metrics"]["loss"] == pytest.approx((33.0 + 40.0) / 2)


def test_the_curve_is_bounded_and_keeps_the_mean() -> None:
    job, summary = JobLedger(), Summary("")
    job.register(definition([20], 2, epochs=1000), 0.0)
    for number in range(1000):
        do(job, 1, float(number))
        summary.observe(job, float(number))
    curve = text(summary, job)["curve"]
    assert 32 <= len(curve) <= 64
    records = [0, *(point[0] for point in curve)]
    assert records[-1] == 2000
    weights = [after - before for before, after in itertools.pairwise(records)]
    total = sum(weight * value for weight, (_, value) in zip(weights, curve, strict=True))
    assert total / 2000 == pytest.approx(499.5, rel=1e-4)
    assert len(summary.text(job)) < 8000


def test_a_master_that_was_restarted_goes_on_with_the_curve_of_epochs() -> None:
    job, summary = JobLedger(), Summary("")
    job.register(definition([4], 2, epochs=9), 0.0)
    do(job, 4)
    summary.observe(job, 0.0)
    assert text(summary, job)["curve"] == [[4, 0.5], [8, 2.5]]
    assert "speed" not in text(summary, job)


@pytest.mark.parametrize("loss", [1e308, -1e308, 2e15])
def test_a_diverging_loss_is_left_out(loss: float) -> None:
    job, summary = JobLedger(), Summary("run")
    job.register(definition([10], 2, epochs=4), 0.0)
    do(job, 1, 0.5)
    summary.observe(job, 0.0)
    do(job, 2, loss)  # the sum of these is not finite
    summary.observe(job, 1.0)
    found = text(summary, job)
    assert found["curve"] == [[2, 0.5]]
    assert found["datasets"][0]["metrics"] == {"other": -1.0}
    assert found["datasets"][0]["records"] == 6


def test_the_largest_progress_can_be_read() -> None:
    job, summary = JobLedger(), Summary("r" * 63)
    for number in range(20):
        job.register(definition([2**50], 2**49, epochs=1_000_000, name=f"d{number}"), 0.0)
    for number in range(20):
        worker = job.join(f"{number}".rjust(253, "ж"), number + 1, 0.0)
        for name in [f"d{each}" for each in range(20)]:
            given = job.take(worker, [name], 0.0)
            if isinstance(given, Assignment):
                job.finish(worker, given.key, {f"{each}".rjust(63, "ж"): 1e15 / 3 for each in range(16)}, 1.0)
    summary.observe(job, 0.0)
    progress = load(ElasticProgress, summary.text(job))
    assert len(progress.datasets) == MAX_DATASETS
    assert {len(dataset.metrics) for dataset in progress.datasets} == {MAX_METRICS}
