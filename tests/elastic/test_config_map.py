"""The state in a ConfigMap of a real API server."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import avactl_worker
import pytest

from avactl.daemons.elastic.state.snapshot import load
from tools.controlplane import ControlPlane, KubeClient
from tools.elastic import ElasticJob
from tools.waiting import wait_until


def options(plane: ControlPlane, namespace: str) -> tuple[str, ...]:
    return ("--config-map", f"{namespace}/job", "--kubeconfig", str(plane.kubeconfig))


@pytest.fixture
def saved(kube: KubeClient, namespace: str) -> Callable[[], int]:
    """Return the number of records that the ConfigMap says are done; 0 without a state."""

    def records() -> int:
        found = kube.find("v1", "ConfigMap", "job", namespace)
        if not found or not found.get("binaryData"):
            return 0
        job, _ = load(base64.b64decode(found["binaryData"]["state"]), 0.0)
        return sum(each.header["records"] for each in job.unregistered.values())

    return records


@pytest.fixture
def job(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[ElasticJob]:
    with ElasticJob(tmp_path, 0, 1, 1, options=options(control_plane, namespace)) as job:
        yield job


def move(job: ElasticJob) -> None:
    """Kill the master and start it on a machine without its file."""
    assert job.master is not None
    job.master.kill()
    job.master.wait()
    for each in job.folder.glob("state*"):
        each.unlink()
    job.start_master()


def test_a_master_on_another_machine_goes_on(job: ElasticJob, saved: Callable[[], int]) -> None:
    with avactl_worker.connect(job.address) as master:
        seen = []
        for task in master.dataset("train", 300, records_per_task=10, epochs=2, seed=1):
            seen.append((task.epoch, task.start))
            if len(seen) == 20:
                wait_until(lambda: saved() == 190)
            if len(seen) in (25, 40):
                move(job)  # the ConfigMap does not have the last tasks: the worker says them again
    assert sorted(seen) == [(epoch, start) for epoch in range(2) for start in range(0, 300, 10)]
    [data] = job.status()["datasets"]
    assert [each["records"] for each in data["results"]] == [300, 300]
    assert "state taken from the ConfigMap" in job.log.read_text()


@pytest.mark.parametrize(
    ("options", "files", "first"),
    [((), 300, 0), (("--resume",), 300, 200), (("--resume",), 400, 0)],
    ids=["new", "resumed", "other data"],
)
def test_another_run(
    job: ElasticJob, saved: Callable[[], int], options: tuple[str, ...], files: int, first: int
) -> None:
    with avactl_worker.connect(job.address) as master:
        for number, _ in enumerate(master.dataset("train", 300, records_per_task=10), 1):
            if number == 21:
                wait_until(lambda: saved() == 200)
                break
    job.options += ("--run", "second", *options)
    move(job)
    with avactl_worker.connect(job.address) as master:
        seen = [task.start for task in master.dataset("train", files, records_per_task=10)]
    assert seen == list(range(first, files, 10))
    # It is done with the data: a third run begins anew.
    wait_until(lambda: saved() == files)
    job.options += ("--run", "third")
    move(job)
    with avactl_worker.connect(job.address) as master:
        assert len(list(master.dataset("train", files, records_per_task=10))) == files // 10


def test_a_dataset_that_a_run_dropped_is_not_waited_for(job: ElasticJob, saved: Callable[[], int]) -> None:
    with avactl_worker.connect(job.address) as master:
        next(iter(master.dataset("old", 300, records_per_task=10)))
        list(master.dataset("small", 20, records_per_task=10))
        wait_until(lambda: saved() == 20)
    for run in ("second", "third"):
        job.options += ("--run", run, "--resume")
        move(job)
        with avactl_worker.connect(job.address) as master:
            assert len(list(master.dataset("new", 300, records_per_task=10))) == 30
            wait_until(lambda: saved() >= 300)


def test_a_state_that_another_master_wrote_ends_this_one(
    job: ElasticJob, saved: Callable[[], int], kube: KubeClient, namespace: str
) -> None:
    with avactl_worker.connect(job.address) as master:
        tasks = iter(master.dataset("train", 300, records_per_task=10))
        for _ in range(3):
            next(tasks)
        wait_until(lambda: saved() == 20)
        found = kube.find("v1", "ConfigMap", "job", namespace)
        assert found is not None
        mine = found["binaryData"]["state"]
        labelled = {**found, "metadata": {**found["metadata"], "labels": {"a": "b"}}}
        kube.replace(labelled)
        next(tasks)
        wait_until(lambda: saved() == 30)
        other = kube.find("v1", "ConfigMap", "job", namespace)
        assert other is not None
        kube.replace({**other, "binaryData": {"state": mine}})
        next(tasks)
        process = job.master
        assert process is not None
        assert wait_until(lambda: process.poll()) == 3
    assert f"another master has written the ConfigMap {namespace}/job" in job.log.read_text()
    shutil.rmtree(job.folder, ignore_errors=True)
