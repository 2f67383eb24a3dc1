"""Checkpoints of scripts whose data comes from the job master."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import avactl_worker
import pytest
from avactl_worker.checkpoint import Checkpoints

from tools.elastic import ElasticJob


def counted(job: ElasticJob) -> int:
    return int(job.status()["datasets"][0]["records"])


def dataset(master: Any) -> Any:
    return master.dataset("train", 100, records_per_task=10, seed=1, read=lambda _, start, end: range(start, end))


@pytest.fixture
def job(tmp_path: Path) -> Any:
    with ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job:
        yield job


def test_a_task_that_is_in_the_checkpoint_is_not_trained_again(tmp_path: Path, job: ElasticJob) -> None:
    master = avactl_worker.connect(job.address, "worker-0")
    data = dataset(master)
    place = tmp_path / "checkpoints"
    seen = []
    loop = iter(data)
    with Checkpoints(place, data=data) as checkpoints:
        for _ in range(3):
            seen.append(next(loop).start)
        checkpoints.save(3)
    assert counted(job) == 20  # the third is reported with the next request
    del loop  # as if it was killed: the task is given back
    master.close()

    with avactl_worker.connect(job.address, "worker-0") as master:
        data = dataset(master)
        with Checkpoints(place, data=data) as checkpoints:
            assert checkpoints.restore() == 3
        assert counted(job) == 30
        rest = [task.start for task in data]
    assert sorted(seen + rest) == list(range(0, 100, 10))


def test_batches_count_up_to_the_one_in_hand(tmp_path: Path, job: ElasticJob) -> None:
    with avactl_worker.connect(job.address, "worker-0") as master:
        data = dataset(master)
        loop = data.batches(4)
        for _ in range(4):
            next(loop)
        assert len(data.state_dict()["trained"]) == 1  # 16 records
        next(loop)
        assert len(data.state_dict()["trained"]) == 2  # 20: reported when the third task is asked for
        assert counted(job) == 0
        loop.close()
        assert counted(job) == 10  # breaking out of a loop gives the batch in hand back


@pytest.mark.parametrize("records", [False, True])
def test_sigterm_reports_what_is_saved(tmp_path: Path, job: ElasticJob, records: bool) -> None:
    with avactl_worker.connect(job.address, "worker-0") as master:
        data = dataset(master)
        checkpoints = Checkpoints(tmp_path / "checkpoints", data=data)
        for step, _ in enumerate(data.batches(10) if records else data, start=1):
            if step < 4:
                checkpoints.step(step)
                continue
            checkpoints._terminated = True
            with pytest.raises(SystemExit, match="143"):
                checkpoints.step(step)
            break
        assert counted(job) == 40
