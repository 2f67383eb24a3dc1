"""The worker library's adapters give every record to the real frameworks, and count those that were trained."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.frameworks import adapters
from tests.local.running import environment
from tools.elastic import ElasticJob
from tools.frameworks.build import build_environment

pytestmark = pytest.mark.frameworks
FUNCTIONS = (
    adapters.torch_iterable_dataset,
    adapters.torch_sampler_with_processes,
    adapters.tensorflow_dataset_and_callback,
)


@pytest.mark.parametrize("function", [function.__name__ for function in FUNCTIONS])
def test_each_record_is_trained_and_counted(function: str, tmp_path: Path) -> None:
    python = str(build_environment() / "python")
    with ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job:
        command = [python, str(adapters.__file__), function, job.address]
        done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
