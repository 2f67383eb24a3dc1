"""Batches of synchronous steps, and states that only look alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avactl_worker
import numpy as np
import pytest
from avactl_worker.feed import Feed

from tools.elastic import ElasticJob
from tools.waiting import patience

PATIENCE = patience()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    """A master without workers."""
    with ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job:
        yield job


def done(job: ElasticJob) -> int:
    return int(job.status()["datasets"][0]["records"])


def test_a_batch_counts_when_all_have_it(job: ElasticJob) -> None:
    with avactl_worker.connect(job.address) as master:
        data = master.dataset("train", 12, 4, read=lambda file, start, end: range(start, end))
        feed = Feed(data, None)
        feed.pull(4)
        assert feed.batch == [0, 1, 2, 3]
        feed.settle(True, {"loss": 2.0})
        feed.pull(4)
        feed.settle(True, {})  # the round has ended meanwhile, and the state is the same
        feed.pull(4)
        assert (feed.batch, done(job)) == ([4, 5, 6, 7], 0)
        feed.settle(False, {})  # the next round has another state: what was lost comes first
        assert feed.batch == [0, 1, 2, 3, 4, 5, 6, 7]
        feed.settle(True, {"loss": 1.0})
        feed.commit()
        feed.settle(True, {})  # of a step without records
        feed.pull(4)
        assert (feed.batch, done(job)) == ([8, 9, 10, 11], 8)
        feed.settle(True, {})
        assert feed.batch == [8, 9, 10, 11]
        feed.close()
        assert done(job) == 8


def test_workers_without_records_get_some_of_no_weight(job: ElasticJob) -> None:
    with avactl_worker.connect(job.address) as master:
        data = master.dataset("train", [("a", 0), ("b", 3)], 4, read=lambda file, start, end: [f"{file}{start}"])
        assert Feed(data, None).any_batch() == ["b0"]


def states(job: ElasticJob, *about: tuple[int, int, int]) -> list[list[float]]:
    """Let groups with states of (step, round of the last step, history) make a step; return their states."""
    arrays = [np.array([10.0 * (number + 1)]) for number in range(len(about))]
    last = max(step for step, _, _ in about) + 1
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            master = avactl_worker.connect(job.address, f"w{number}")
            group = master.group([arrays[number]], least=len(about))
            group.step, group._applied_in, group._history = about[number]
            for step in group.steps(last):
                with step:
                    arrays[number] += step.sum(np.ones(1))
            master.close()
        except BaseException as error:  # of a thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(about))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert errors == []
    return [each.tolist() for each in arrays]


def test_a_worker_that_was_away_takes_the_state_of_the_others(job: ElasticJob) -> None:
    """Both have made step 5, but in different rounds: without each other's part."""
    first, second = states(job, (5, 2, 7), (5, 3, 7))
    assert first == second
    assert first in ([12.0], [22.0])


def test_the_most_steps_win(job: ElasticJob) -> None:
    assert states(job, (3, 2, 7), (5, 2, 7)) == [[22.0]] * 2


def test_initial_states_are_made_alike(job: ElasticJob) -> None:
    first, second = states(job, (0, 0, 0), (0, 0, 0))
    assert first == second


def test_unequal_sums_are_refused(job: ElasticJob) -> None:
    found: list[Any] = []

    def work(number: int) -> None:
        try:
            with avactl_worker.connect(job.address, f"w{number}") as master:
                for step in master.group([np.zeros(1)], least=2).steps(2):
                    with step:
                        step.sum(np.zeros(number + 1))
        except avactl_worker.MasterError as error:
            found.append(str(error))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert len(found) == 2
    assert "all workers must sum the same number of values; by rank they sum [" in found[0]


def test_a_step_needs_its_block_and_a_sum(job: ElasticJob) -> None:
    with avactl_worker.connect(job.address) as master:
        group = master.group([np.zeros(1)])

        def bare() -> None:
            for step in group.steps(2):
                step.sum(1.0)

        def empty() -> None:
            for step in group.steps(2):
                with step:
                    pass

        with pytest.raises(RuntimeError, match="write `with step:`"):
            bare()
        with pytest.raises(RuntimeError, match="each step must call"):
            empty()
        with pytest.raises(avactl_worker.MasterError, match="a process has one group"):
            master.group([np.zeros(1)])
