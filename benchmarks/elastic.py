"""The elastic job master: throughput beside DLRover's, and a job whose workers and master are killed every second.

    python -m benchmarks.elastic [throughput|recovery|storm|goodput|reform|resize]
                                 [--workers 1000] [--seconds 10] [--dlrover PYTHON]

throughput: WORKERS workers, with a connection each, get and report tasks as fast as they can, from DLRover's master and
from ours, in turn; then from ours at five times the rate that DLRover's had. The dataset has a million tasks. The CPU
time for a get and a report, of the master and of the load, is what other processes on the machine change least.
DLRover (from PyPI, Apache-2.0) gets an environment of its own in ~/.cache/avactl, or `--dlrover` names the interpreter
of one. The load runs in one process beside the master, so each has about one core of two.

recovery: the master is killed five times; the time until the workers begin another task.

storm: 100,000 records in 10,000 tasks; every second a worker, the master, or both are killed with SIGKILL.

goodput: synchronous steps of half a second by 4 workers, first without faults, then with a worker killed in each
20 steps' time and started again. Lost are parts of steps that are computed and not in the model, and steps per second.

reform: the time to the next step after a worker is killed, and after one is stopped whose connections stay open.

resize: the loss with 4 workers, and with 4, then 8, then 3, then 6, over five seeds.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import grpc
from rich.table import Table

from benchmarks import elastic_sync
from benchmarks.measure import Bar, bar, console, cpu_seconds, peak_memory
from tools.controlplane import progress
from tools.controlplane.build import cache_dir, make_once
from tools.controlplane.process import free_port
from tools.elastic import ROOT, ElasticJob, environment

DLROVER = ("dlrover[k8s]==0.6.1", "protobuf<5", "setuptools<81")
RATIO = 5.0


def dlrover_python(asked: str | None) -> str:
    """Return the interpreter of an environment with DLRover, which is made if need be."""
    if asked is not None:
        return asked
    folder = cache_dir() / "dlrover-0.6.1"
    make_once(folder / "ready", "waiting for another install of DLRover", _install_dlrover)
    return str(folder / "venv/bin/python")


def _install_dlrover(ready: Path) -> None:
    # A virtual environment cannot be moved, so it is made where it stays.
    venv = ready.parents[1] / "venv"
    with progress.step("installing DLRover", "installed DLRover"):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "--quiet", *DLROVER], check=True)
    ready.touch()


@contextmanager
def master(command: list[str], address: str) -> Iterator[int]:
    """Run a master until the end of the block; yields its process id when it listens."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=tempfile.gettempdir(), env=environment(), stdout=log, stderr=log)
        try:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=120)
            yield process.pid
        finally:
            process.kill()
            process.wait()


def load(
    python: str, kind: str, address: str, process: int, workers: int, seconds: float, rate: float = 0.0
) -> dict[str, float]:
    """Run the load, and return its rate and latencies, and the CPU time of the master by its process id."""
    command = [
        python,
        str(ROOT / "benchmarks" / "elastic_load.py"),
        kind,
        address,
        "--workers",
        str(workers),
        "--seconds",
        str(seconds),
        "--rate",
        str(rate),
    ]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()  # all workers are connected
        before = cpu_seconds(process)
        lines = running.stdout.readlines()
        spent = cpu_seconds(process) - before
    if running.returncode:
        raise SystemExit(f"the load on {kind} ended with {running.returncode}")
    found: dict[str, float] = json.loads(lines[-1])
    return {**found, "master": 1e6 * spent / found["steps"]}


class Measured(NamedTuple):
    """A run of a master under load."""

    rate: float
    p50: float
    p99: float
    cpu: float
    """µs of CPU time of the master per step."""
    load: float
    """µs of CPU time of the load per step."""
    memory: float
    """Peak, in MB."""


def measured(kind: str, python: str, workers: int, seconds: float, rate: float = 0.0) -> Measured:
    """Start a master and run the load; `python` is DLRover's."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, master(_command(kind, python, port, folder), address) as process:
        interpreter = python if kind == "dlrover" else sys.executable
        found = load(interpreter, kind, address, process, workers, seconds, rate)
        memory = peak_memory(process) / 1e6
    return Measured(found["rate"], found["p50"], found["p99"], found["master"], found["cpu"], memory)


def throughput(workers: int, seconds: float, asked: str | None, rounds: int = 3) -> None:
    """Compare the two masters: the best rate of several runs, as others show what else ran, and the median p99."""
    python = dlrover_python(asked)
    table = Table(
        "master",
        "steps/s",
        "p50 ms",
        "p99 ms",
        "CPU µs",
        "load µs",
        title=f"{workers} workers, {seconds:g} s; a step is a get and a report",
    )
    runs: dict[str, list[Measured]] = {"dlrover": [], "avactl": [], "paced": []}

    def row(name: str, kind: str, rate: float = 0.0) -> None:
        found = measured("dlrover" if kind == "dlrover" else "avactl", python, workers, seconds, rate)
        runs[kind].append(found)
        table.add_row(name, *(f"{value:,.1f}" for value in found[:5]))

    for _ in range(rounds):
        row("dlrover", "dlrover")
        row("avactl", "avactl")
    theirs = max(each.rate for each in runs["dlrover"])
    for _ in range(rounds):
        row(f"avactl at {RATIO * theirs:,.0f}/s", "paced", RATIO * theirs)
    console.print(table)
    ours = max(each.rate for each in runs["avactl"])
    bar(Bar("elastic-dlrover-over-ours", theirs / ours, 1 / RATIO, "", 3))
    bar(Bar("elastic-p99", median(each.p99 for each in runs["paced"]), 50, " ms", 1))
    bar(Bar("elastic-memory", max(each.memory for each in runs["avactl"]), 300, " MB", 0))


def _command(kind: str, python: str, port: int, folder: str) -> list[str]:
    if kind == "dlrover":
        return [
            python,
            "-m",
            "dlrover.python.master.main",
            "--platform",
            "local",
            "--port",
            str(port),
            "--job_name",
            "benchmark",
            "--node_num",
            "1",
        ]
    return [
        sys.executable,
        "-m",
        "avactl.cli.main",
        "elastic",
        "master",
        "--state",
        f"{folder}/state",
        "--listen",
        f"127.0.0.1:{port}",
    ]


def storm(records: int, workers: int) -> None:
    """Kill a worker, the master, or both, every second until the job has ended."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with ElasticJob(Path(folder), workers, records, records // 10_000, pause=0.02) as job:
            following = began + 1.0
            while not job.ended():
                if time.monotonic() >= following:
                    job.kill_random()
                    following = max(following + 1.0, time.monotonic())
                time.sleep(0.01)
            took = time.monotonic() - began
            status, begun, kills = job.status(), job.begun(), job.kills
    [data] = status["datasets"]
    counted = data["results"][0]["records"] if data["results"] else 0
    repeated = sum(begun.values()) - len(begun)
    console.print(
        f"{records:,} records in {len(begun):,} tasks: {took:.0f} s, {kills['worker']} kills of workers, "
        f"{kills['master']} of the master; {repeated} tasks begun again"
    )
    bar(Bar("storm-records-miscounted", abs(records - counted), 0, "", 0))
    bar(Bar("storm-tasks-missing", 10_000 - len(begun), 0, "", 0))
    bar(Bar("storm-repeated-per-kill", repeated / max(1, kills["worker"]), 1))


def recovery(times: int) -> None:
    """Kill the master, and measure the time until the workers begin another task."""
    pauses = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ElasticJob(Path(folder), 4, 1_000_000, 10, pause=0.02) as job,
    ):
        for _ in range(times):
            _await_task(job)
            job.kill_master()
            pauses.append(_await_task(job))
    console.print("seconds from a kill of the master to the next task: " + ", ".join(f"{each:.2f}" for each in pauses))
    bar(Bar("elastic-master-killed", max(pauses), 5, " s"))


def _await_task(job: ElasticJob) -> float:
    began, size = time.monotonic(), job.tasks.stat().st_size
    while job.tasks.stat().st_size == size:
        time.sleep(0.005)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    synchronous: dict[str, Callable[[], None]] = {
        "goodput": elastic_sync.goodput,
        "reform": elastic_sync.reform,
        "resize": elastic_sync.resize,
    }
    parser.add_argument("what", nargs="?", choices=("throughput", "recovery", "storm", *synchronous))
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--dlrover", metavar="PYTHON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes of a job end with their block
    if options.what in (None, "throughput"):
        throughput(options.workers, options.seconds, options.dlrover)
    if options.what in (None, "recovery"):
        recovery(5)
    if options.what in (None, "storm"):
        storm(options.records, workers=8)
    for name, measure in synchronous.items():
        if options.what in (None, name):
            measure()


if __name__ == "__main__":
    main()
