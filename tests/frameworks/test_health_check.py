"""The health check by torch.distributed, over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from avactl_worker.health_check import REPLACED, STARTS

from tests.health_check.workers import Workers
from tools.frameworks.build import build_environment

pytestmark = pytest.mark.frameworks


def test_a_worker_whose_device_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with Workers(tmp_path, 3, "--timeout", "20", python=str(build_environment() / "python")) as job:
        for index in range(3):
            job.start(index, fault="hangs" if index == 2 else "")
        assert job.end(2) == REPLACED
        assert "this worker is replaced: hung for 20 s" in job.output(2)
        job.start(2, restarts=1)
        assert [job.end(index) for index in range(3)] == [STARTS] * 3
        assert "3 workers passed over gloo" in job.output(0)
