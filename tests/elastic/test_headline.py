"""Short forms of benchmarks.elastic_headline: real scheduler, masters and workers, and records counted exactly."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.elastic_headline.picture import Panel, picture
from benchmarks.elastic_headline.scenario import Cluster, Run, cluster, two_jobs
from benchmarks.elastic_headline.specs import NAMESPACE, Job
from benchmarks.elastic_headline.timeline import SERVICE, Busy, Task, busy, repeated, share

pytestmark = [pytest.mark.usefixtures("control_plane_binaries"), pytest.mark.xdist_group("scheduler")]
RECORDS = 60


def job(name: str, least: int, most: int) -> Job:
    return Job(name, least, most, RECORDS, records_per_task=2, second=0.05)


def most_at_once(used: Sequence[Busy]) -> int:
    """The largest number of slots in use at one time."""
    changes = sorted([(each.began, 1) for each in used] + [(each.ended, -1) for each in used])
    return max(itertools.accumulate(change for _, change in changes))


@pytest.mark.parametrize("least", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_two_jobs_that_do_not_fit_together(least: int) -> None:
    """Elastic jobs share five slots; gangs run one after the other."""
    run = asyncio.run(two_jobs(1, 5, job("first", least, 3), job("second", least, 3), 0.0))
    for name in run.submitted:
        assert repeated([task for task in run.tasks if task.job == name], RECORDS) == 0
    assert most_at_once(busy(run.tasks, run.lives)) <= 5
    together = run.first_task("second") < max(task.ended for task in run.tasks if task.job == "first")
    assert together == (least == 1)


def test_a_service_takes_surplus_workers_and_they_come_back() -> None:
    async def scenario() -> Run:
        async with cluster(1, 4) as here:
            await here.serve(1)
            await here.submit(job("train", 1, 4)._replace(records=100_000))
            await here.until(lambda found: workers(found) == {0, 1, 2})
            await here.scale(3)
            await serving(here, 3)
            await here.scale(1)
            count = len(here.tasks())
            await here.until(lambda found: len(workers(found[count:])) == 3)
            return here.finish({})

    run = asyncio.run(scenario())
    # Surplus workers were stopped for the service: worker 0 and the master never.
    assert [life.name.rpartition("-")[0] for life in run.lives].count("train-worker-0") == 1
    assert [life.role for life in run.lives].count("master") == 1
    assert most_at_once(busy(run.tasks, run.lives)) <= 4


@pytest.mark.slow
def test_a_worker_that_is_preempted_again_comes_back_as_soon() -> None:
    """The Job controller doubles its wait with the failures that it has counted for an index."""

    def both(since: float, found: list[Task]) -> bool:
        return workers([task for task in found if task.began > since]) == {0, 1}

    async def pods(here: Cluster) -> dict[str, dict[str, Any]]:
        found = await asyncio.to_thread(here.kube.list, "v1", "Pod", NAMESPACE)
        return {pod["metadata"]["name"]: pod for pod in found}

    async def scenario() -> str:
        async with cluster(1, 3) as here:
            await here.serve(1)
            await here.submit(job("train", 1, 2)._replace(records=100_000))
            counted = ""
            for _ in range(2):
                began = time.time()
                await here.until(partial(both, began))
                before = await pods(here)
                await here.scale(2)
                new: list[dict[str, Any]] = []
                while not new:
                    await asyncio.sleep(0.2)
                    found = await pods(here)
                    new = [found[name] for name in found.keys() - before if name.startswith("train-worker-1-")]
                counted = new[0]["metadata"]["annotations"]["batch.kubernetes.io/job-index-ignored-failure-count"]
                await here.scale(1)
            return counted

    assert asyncio.run(scenario()) == "1"


def workers(found: Sequence[Task]) -> set[int]:
    return {task.worker for task in found}


async def serving(here: Cluster, pods: int) -> None:
    await here.until(lambda _: sum(life.owner == SERVICE for life in here.lives()) >= pods)


def test_share_and_picture() -> None:
    used = [Busy("a", 0, 10), Busy("b", 5, 10)]
    assert share(used, 2, 0, 10) == pytest.approx(0.75)
    assert share(used, 2, 5, 20) == pytest.approx(1 / 3)
    drawn = picture([Panel("Title <1>", "note", used, {"a": "first", "b": "second"}, 12, 10, 4)], 2)
    root = ElementTree.fromstring(drawn)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title <1>", "note", "first", "second", "0", "4 s", "8 s", "12 s"} <= set(texts)


def test_records_that_were_never_computed_are_told() -> None:
    done = Task("a", 0, 0, 2, 0.0, 1.0, True)
    assert repeated([done, done._replace(start=1), done._replace(start=2, stop=4, done=False)], 2) == 1
    with pytest.raises(ValueError, match="2 of 4 records were never computed"):
        repeated([done, done._replace(start=2, stop=4, done=False)], 4)
