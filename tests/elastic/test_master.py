"""A real master and real workers, which are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import avactl_worker
import grpc
import pytest
from avactl_worker import messages as m
from avactl_worker.session import Session

from tests.conftest import ROOT
from tools.controlplane.process import free_port
from tools.elastic import ElasticJob, environment, status
from tools.waiting import patience, wait_until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    """A master without workers."""
    with ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job:
        yield job


def connect(job: ElasticJob, name: str = "") -> avactl_worker.Master:
    return avactl_worker.connect(job.address, name)


# -- the storm --------------------------------------------------------------------------------------------------------


def storm(folder: Path, records: int, every: int) -> ElasticJob:
    """Kill something whenever `every` more tasks were begun."""
    with ElasticJob(folder, workers=4, records=records, records_per_task=10, epochs=2, pause=0.002) as job:
        seen = 0
        while not job.ended():
            begun = job.tasks.stat().st_size
            if begun >= seen + every * len("0 1000 1010\n"):
                seen = begun
                job.kill_random()
            time.sleep(0.02)
        result = job.status()
    assert result["complete"]
    [data] = result["datasets"]
    assert [(each["epoch"], each["records"]) for each in data["results"]] == [(0, records), (1, records)]
    assert data["records"] == 2 * records
    begun_tasks = job.begun()
    expected = {(epoch, start, start + 10) for epoch in range(2) for start in range(0, records, 10)}
    assert set(begun_tasks) == expected
    repeated = sum(begun_tasks.values()) - len(expected)
    assert repeated <= job.kills["worker"], (repeated, job.kills)
    return job


def test_each_record_is_counted_once_when_workers_and_master_are_killed(tmp_path: Path) -> None:
    job = storm(tmp_path, records=3_000, every=60)
    assert job.kills["worker"] >= 2
    assert job.kills["master"] >= 2


# -- workers ----------------------------------------------------------------------------------------------------------


def test_workers_share_the_data_and_see_the_end(job: ElasticJob) -> None:
    found: list[tuple[str, int, int, int]] = []

    def work(name: str) -> None:
        with connect(job, name) as master:
            for task in master.dataset("train", [("a", 25), ("b", 8)], records_per_task=5, epochs=2, seed=3):
                found.append((task.file, task.epoch, task.start, task.end))
                task.report(loss=task.epoch + 0.5)

    threads = [threading.Thread(target=work, args=(f"w{index}",)) for index in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(patience())
    pieces = [("a", start, start + 5) for start in range(0, 25, 5)] + [("b", 0, 5), ("b", 5, 8)]
    assert sorted(found) == sorted((file, epoch, start, end) for epoch in range(2) for file, start, end in pieces)
    [data] = job.status()["datasets"]
    assert [each["metrics"] for each in data["results"]] == [{"loss": 0.5}, {"loss": 1.5}]


def test_a_worker_goes_on_with_the_next_master(job: ElasticJob) -> None:
    with connect(job) as master:
        seen = []
        for task in master.dataset("train", 100, records_per_task=10):
            seen.append(task.start)
            if len(seen) in (2, 5):
                job.kill_master()
        assert seen == list(range(0, 100, 10))
    assert job.status()["datasets"][0]["records"] == 100


def test_breaking_out_of_a_loop_gives_the_task_back(job: ElasticJob) -> None:
    with connect(job, "one") as one, connect(job, "two") as two:
        for task in one.dataset("train", 20, records_per_task=10):
            assert task.start == 0
            break
        tasks = [task.start for task in two.dataset("train", 20, records_per_task=10)]
    assert tasks == [0, 10]


def test_a_worker_that_stops_is_lost_and_its_task_given_to_another(job: ElasticJob) -> None:
    script = (
        "import avactl_worker, time\n"
        "for task in avactl_worker.connect().dataset('train', 20, records_per_task=10):\n"
        "    print(task.start, flush=True)\n"
        "    time.sleep(600)\n"
    )
    more = {"AVACTL_MASTER": job.address, "AVACTL_WORKER": "stopped"}
    stopped = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env={**environment(), **more}, stdout=subprocess.PIPE
    )
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == b"0\n"
    os.kill(stopped.pid, 19)  # SIGSTOP: its sockets stay open
    try:
        with connect(job, "other") as master:
            assert [task.start for task in master.dataset("train", 20, records_per_task=10)] == [10, 0]
            wait_until(lambda: '"worker lost","name":"stopped"' in job.log.read_text())
    finally:
        stopped.kill()
        stopped.communicate()


def test_batches_cross_tasks_and_count_when_the_next_is_asked_for(job: ElasticJob) -> None:
    with connect(job) as master:
        data = master.dataset(
            "train",
            [("a", 10), ("b", 7)],
            4,
            epochs=2,
            read=lambda file, start, end: [f"{file}{index}" for index in range(start, end)],
        )
        sizes, records = [], []
        for batch in data.batches(6):
            sizes.append(len(batch))
            records += batch
            done = job.status()["datasets"][0]["records"]
            assert done <= len(records) - len(batch)
        assert sizes == [6, 6, 5] * 2
        assert sorted(records) == sorted(2 * [f"a{i}" for i in range(10)] + 2 * [f"b{i}" for i in range(7)])
    assert job.status()["datasets"][0]["records"] == 34


def test_a_file_that_is_shorter_than_it_says(job: ElasticJob) -> None:
    with connect(job) as master:
        data = master.dataset("train", [("a", 10)], 5, read=lambda file, start, end: [0] * 3)
        with pytest.raises(ValueError, match=r"train: read\('a', 0, 5\) returned 3 records instead of 5"):
            list(data.records())


def test_unequal_workers_are_refused(job: ElasticJob) -> None:
    with connect(job, "one") as one, connect(job, "two") as two:
        one.dataset("train", 100, records_per_task=10)
        with pytest.raises(avactl_worker.MasterError, match="this worker says epochs 2 instead of 1: all workers must"):
            two.dataset("train", 100, records_per_task=10, epochs=2)
        with pytest.raises(avactl_worker.MasterError, match="records_per_task is 0; it must be at least 1"):
            two.dataset("other", 100, records_per_task=0)


def test_two_processes_of_one_name(job: ElasticJob) -> None:
    with connect(job, "same") as first:
        data = first.dataset("train", 100, records_per_task=10)
        with connect(job, "same"), pytest.raises(avactl_worker.MasterError, match="another process joined as same"):
            wait_until(lambda: list(data) is None)


def test_a_process_that_has_left_does_not_join_again(job: ElasticJob) -> None:
    """Its heartbeats may be about to, after a broken connection."""
    master = connect(job)
    assert job.status()["workers"] == 1
    master.close()
    assert master.session._connect() is None
    assert job.status()["workers"] == 0


def test_the_clock_waits_for_the_slowest_worker(job: ElasticJob) -> None:
    with connect(job, "slow") as slow_master, connect(job, "fast") as fast_master:
        slow, fast = slow_master.clock(2), fast_master.clock(2)
        slow.tick()
        reached = []

        def run() -> None:
            for _ in range(6):
                reached.append(fast.tick())

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: len(reached) == 3)
        assert slow.tick() == 2
        wait_until(lambda: len(reached) == 4)
        slow_master.close()
        thread.join(patience())
        assert reached == [1, 2, 3, 4, 5, 6]


def test_the_example_of_the_docs(job: ElasticJob) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "worker" / "examples" / "line.py")]
        more = {"AVACTL_MASTER": job.address}
        return subprocess.Popen(command, env={**environment(), **more}, stdout=subprocess.PIPE, text=True)

    workers = [start(), start()]
    lines = [each.communicate(timeout=patience())[0] for each in workers]
    assert [each.returncode for each in workers] == [0, 0]
    assert all("y = " in line for line in lines)
    [data] = job.status()["datasets"]
    assert [each["records"] for each in data["results"]] == [10_000] * 3
    assert all(0 < each["metrics"]["loss"] < 5 for each in data["results"])


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_worker_of_another_version_is_told_so(job: ElasticJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "SESSION", "/avactl.elastic.v9.Master/Session")
    with pytest.raises(avactl_worker.MasterError, match=r"speaks avactl\.elastic\.v9, and this"):
        connect(job)


def test_a_server_that_is_no_master_is_told_so() -> None:
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(avactl_worker.MasterError, match="does not speak avactl"):
            avactl_worker.connect(f"127.0.0.1:{port}")
    finally:
        server.stop(None)


def test_no_master_for_too_long() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(avactl_worker.MasterError, match=f"no master at {address} for 0.2 s"):
        Session(address, "w", patience=0.2)
    with pytest.raises(avactl_worker.MasterError, match="set AVACTL_MASTER"):
        avactl_worker.connect()


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_master_at_an_address_of_ipv6(tmp_path: Path, host: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "avactl.cli.main", "elastic", "master", "--state", str(tmp_path / "state")]
    with subprocess.Popen([*command, "--listen", f"{host}:{port}"], cwd=ROOT, env=environment()) as master:
        try:
            assert status(f"[::1]:{port}")["datasets"] == []
        finally:
            master.terminate()


# -- the command ------------------------------------------------------------------------------------------------------


def test_bad_command_lines(tmp_path: Path, job: ElasticJob) -> None:
    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "avactl.cli.main", "elastic", "master", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    state = ("--state", str(tmp_path / "other"))
    assert run(*state, "--listen", "here") == (
        2,
        "avactl: `--listen here` is not HOST:PORT\n        `0.0.0.0:2380` listens on all addresses\n",
    )
    code, message = run(*state, "--listen", job.address)
    assert (code, message.splitlines()[-1]) == (
        3,
        f"avactl: `--listen {job.address}`: cannot listen there: is the address in use?",
    )
    code, message = run("--state", str(tmp_path / "state"), "--listen", f"127.0.0.1:{free_port()}")
    assert (code, message.splitlines()[-1]) == (3, f"avactl: {tmp_path}/state: another master uses this state")
