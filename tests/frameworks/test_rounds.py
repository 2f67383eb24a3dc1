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

TRAIN = """
import gc, sys, torch, avactl_worker
import torch.distributed as dist
from avactl_worker import torch_group

def fail(*_, **__):
    raise RuntimeError("two workers on one GPU")

if "fail" in sys.argv:
    dist.all_reduce = fail
with avactl_worker.connect() as master:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = torch_group.group(master, [model, optimizer])
    data = master.dataset("train", 64, records_per_task=16)
    for step in group.batches(data, 16, lambda _, start, end: range(start, end)):
        gc.collect()
        dist.new_group()
        with step:
            model(torch.ones(4)).sum().backward()
            torch_group.average(step, model.parameters())
            optimizer.step()
    print("steps", group.step)
"""


def train(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run TRAIN with one worker to its end."""
    command = [str(build_environment() / "python"), "-c", TRAIN, *words]
    with ElasticJob(folder, workers=0, records=1, records_per_task=1) as job:
        env = {**environment(), "AVACTL_MASTER": job.address, "AVACTL_WORKER": "worker-0"}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)


def test_the_store_of_a_round_answers_after_its_set_up(tmp_path: Path) -> None:
    """Each new group asks it, as nccl does when it connects."""
    done = train(tmp_path)
    assert done.stdout == "steps 4\n", done.stderr


def test_a_failure_that_comes_in_every_round_ends_training(tmp_path: Path) -> None:
    done = train(tmp_path, "fail")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "RuntimeError: torch.distributed failed 5 times in a row: two workers on one GPU"
    )
    assert "[rank0]: [rank0]" not in done.stderr


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
