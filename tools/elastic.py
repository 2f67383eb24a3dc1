"""An elastic job as processes of this machine: a master, and workers that are started again when they are killed.

    with ElasticJob(folder, workers=4, records=10_000, records_per_task=10) as job:
        job.kill_worker()
        job.kill_master()
        job.wait()

Each worker writes to a log which task it begins; `job.begun()` counts them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from avactl_worker import messages as m

from tools.controlplane.process import free_port
from tools.waiting import PATIENCE_S, patience, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORKER = """
import os, sys, time
import avactl_worker
records, per_task, epochs = map(int, sys.argv[1:4])
pause, log = float(sys.argv[4]), sys.argv[5]
master = avactl_worker.connect()
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for task in master.dataset("train", records, records_per_task=per_task, epochs=epochs, seed=1):
    os.write(out, b"%d %d %d\\n" % (task.epoch, task.start, task.end))
    time.sleep(pause)
master.close()
"""


def environment() -> dict[str, str]:
    """Return the environment in which a process finds avactl and its worker library."""
    paths = [str(ROOT), str(ROOT / "worker"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def status(address: str) -> dict[str, Any]:
    """Return what a master says of its job. Raises grpc.RpcError if there is none."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        raw = channel.unary_unary(m.STATUS)(m.StatusRequest().encode(), timeout=patience(), wait_for_ready=True)
    found: dict[str, Any] = json.loads(m.StatusAnswer.decode(raw).json)
    return found


class ElasticJob:
    """A job that sleeps for `pause` seconds a task. Use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        records: int,
        records_per_task: int,
        epochs: int = 1,
        pause: float = 0.0,
        options: tuple[str, ...] = (),
        seed: int = 1,
    ) -> None:
        self.folder, self.options = folder, options
        self.address = f"127.0.0.1:{free_port()}"
        self.log, self.tasks = folder / "tasks.log", folder / "begun"
        self._words = (str(records), str(records_per_task), str(epochs), str(pause), str(self.tasks))
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self.master: subprocess.Popen[bytes] | None = None
        self._random = random.Random(seed)
        self.kills = Counter[str]()

    def __enter__(self) -> Self:
        self.log.touch()
        self.tasks.touch()
        self.start_master()
        for index in range(len(self.workers)):
            self.start_worker(index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.master):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def start_master(self) -> None:
        """Start a master with the state of the one before."""
        command = [
            sys.executable,
            "-m",
            "avactl.cli.main",
            "elastic",
            "master",
            "--state",
            str(self.folder / "state"),
            "--listen",
            self.address,
            *self.options,
        ]
        self.master = self._start(command, {})

    def start_worker(self, index: int) -> None:
        """Start a worker with the name of the one before."""
        more = {"AVACTL_MASTER": self.address, "AVACTL_WORKER": f"worker-{index}"}
        self.workers[index] = self._start([sys.executable, "-c", WORKER, *self._words], more)

    def _start(self, command: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env={**environment(), **more}, stdout=log, stderr=log)

    def kill_master(self) -> None:
        """Kill the master with SIGKILL, and start another one."""
        assert self.master is not None
        self.master.send_signal(signal.SIGKILL)
        self.master.wait()
        self.kills["master"] += 1
        self.start_master()

    def kill_worker(self) -> None:
        """Kill one of the workers that still run with SIGKILL, and start it again."""
        running = [index for index, each in enumerate(self.workers) if each is not None and each.poll() is None]
        if not running:
            return
        index = self._random.choice(running)
        process = self.workers[index]
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills["worker"] += 1
        self.start_worker(index)

    def kill_random(self) -> None:
        """Kill a worker, the master, or both."""
        what = self._random.choice(("worker", "master", "both"))
        if what != "master":
            self.kill_worker()
        if what != "worker":
            self.kill_master()

    def ended(self) -> bool:
        """Return True if all workers have ended. Raises RuntimeError if one or the master has failed."""
        codes = [each.poll() for each in self.workers if each is not None]
        failed = [code for code in codes if code]
        if failed or self.master is None or self.master.poll() is not None:
            raise RuntimeError(f"a process has failed: workers {codes}\n{self.log.read_text()[-4000:]}")
        return None not in codes

    def wait(self, seconds: float = PATIENCE_S) -> None:
        """Wait until all workers have ended. Raises TimeoutError."""
        wait_until(self.ended, timeout=seconds, details=lambda: f"{self.status()}\n{self.log.read_text()[-4000:]}")

    def begun(self) -> Counter[tuple[int, int, int]]:
        """Return how often each task was begun: epoch, first and last record."""
        found = Counter[tuple[int, int, int]]()
        for line in self.tasks.read_text().splitlines():
            epoch, start, end = map(int, line.split())
            found[epoch, start, end] += 1
        return found

    def status(self) -> dict[str, Any]:
        """Return what the master says."""
        return status(self.address)


class SyncJob(ElasticJob):
    """A job of synchronous steps, whose workers run `tools/sync_worker.py` and end by themselves.

    Workers are started and ended by the caller, and not started again.
    """

    def __init__(
        self,
        folder: Path,
        records: int,
        epochs: int,
        batch: int,
        seed: int = 1,
        pause: float = 0.0,
        least: int = 1,
        pods: bool = False,
    ) -> None:
        """`pods`: number 0 leads, as on a cluster; otherwise the longest member does."""
        super().__init__(folder, 0, records, 32, epochs)
        self.steps = folder / "steps.log"
        self.hold = folder / "hold"
        """While this file is there, the leader does not leave."""
        self.slow = folder / "slow"
        """While this file is there, each step takes `pause` seconds."""
        self.slow.touch()
        script = ROOT / "tools" / "sync_worker.py"
        words = (records, epochs, batch, seed, pause, self.steps)
        self._command = [sys.executable, str(script), *map(str, words)]
        self._range, self._pods = f"{least}:0", pods
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.workers = list(self.running.values())
        super().__exit__(kind, error, trace)

    def start(self, *names: str) -> None:
        """Start workers."""
        self.steps.touch()
        for name in names:
            more = {"AVACTL_MASTER": self.address, "AVACTL_WORKER": name, "AVACTL_WORKER_RANGE": self._range}
            if self._pods:
                more["AVACTL_INDEX"] = name.rpartition("-")[2]
            self.running[name] = self._start(self._command, {**more, "HOLD": str(self.hold), "SLOW": str(self.slow)})

    def send(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to workers; those that it kills are forgotten."""
        for name in names:
            self.running[name].send_signal(number)
            if number == signal.SIGKILL:
                self.running.pop(name).wait()

    def notes(self, what: str = "") -> list[dict[str, Any]]:
        """Return what the workers logged, or only lines of one kind."""
        found = [json.loads(line) for line in self.steps.read_text().splitlines()]
        return [each for each in found if what in ("", each["what"])]

    def until(self, true: Callable[[list[dict[str, Any]]], Any], seconds: float = PATIENCE_S) -> None:
        """Wait until something is true of the notes. Raises TimeoutError."""
        wait_until(
            lambda: true(self.notes()),
            timeout=seconds,
            poll=0.02,
            details=lambda: f"{self.notes()[-3:]}\n{self.log.read_text()[-6000:]}",
            failed=lambda: [name for name, each in self.running.items() if each.poll()],
        )

    def until_size(self, size: int, steps: int = 3) -> None:
        """Wait until some more steps were done by so many workers."""
        before = len(self.notes())
        self.until(
            lambda notes: sum((each["what"], each["size"]) == ("done", size) for each in notes[before:]) >= size * steps
        )

    def end(self, seconds: float = PATIENCE_S) -> None:
        """Wait until all workers have ended well, without pauses. Raises RuntimeError."""
        self.slow.unlink(missing_ok=True)
        deadline = time.monotonic() + patience(seconds)
        for name, process in self.running.items():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                raise RuntimeError(f"{name} ended with {code}\n{self.log.read_text()[-6000:]}")
