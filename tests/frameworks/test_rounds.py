"""Rounds of torch.distributed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.local.running import LIMIT
from tools.elastic import ElasticJob, environment
from tools.frameworks.build import build_environment
from tools.waiting import wait_until

pytestmark = pytest.mark.frameworks


def test_a_peer_that_stops_inside_a_sum_of_gradients(tmp_path: Path) -> None:
    """Its connections stay open: the survivor gives the sum up, goes on alone, and ends."""
    command = [str(build_environment() / "python"), str(Path(__file__).with_name("stops_inside.py"))]
    with ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job:

        def start(name: str, **more: str) -> subprocess.Popen[str]:
            env = {**environment(), "AVACTL_MASTER": job.address, "AVACTL_WORKER": name, **more}
            return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

        stopped = start("stopped", STOP="1")
        try:
            wait_until(lambda: job.status()["round"]["waiting"], timeout=LIMIT)
            with start("other") as other:
                output, _ = other.communicate(timeout=LIMIT)
                assert other.returncode == 0
        finally:
            stopped.kill()
            stopped.communicate()
    assert "step 2 of 2\nstep 3 of 1\n" in output
    assert output.endswith("step 10 of 1\n")
