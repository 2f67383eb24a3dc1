"""A processing as a job: a real master, and workers that are killed."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.elastic import ElasticJob


class ProcessingJob(ElasticJob):
    """Workers of `avactl dataset process`. Use it in a `with` block."""

    def __init__(self, folder: Path, workers: int, args: tuple[str, ...], env: dict[str, str], seed: int = 1) -> None:
        super().__init__(folder, workers, records=1, records_per_task=1, seed=seed)
        self._args, self._env = args, env

    def start_worker(self, index: int) -> None:
        """Start a worker with the name of the one before."""
        command = [sys.executable, "-m", "avactl.cli.main", "dataset", "process", *self._args]
        more = {"AVACTL_MASTER": self.address, "AVACTL_WORKER": f"worker-{index}", **self._env}
        self.workers[index] = self._start(command, more)
