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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from avactl_worker import messages as m

from tools.controlplane.process import free_port

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
        raw = channel.unary_unary(m.STATUS)(m.StatusRequest().encode(), timeout=10, wait_for_ready=True)
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
            sys.executable, "-m", "avactl.cli.main", "elastic", "master",
            "--state", str(self.folder / "state"), "--listen", self.address, *self.options,
        ]  # fmt: skip
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

    def wait(self, seconds: float = 300.0) -> None:
        """Wait until all workers have ended. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.status()}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

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
