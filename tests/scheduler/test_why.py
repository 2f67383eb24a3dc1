"""`avactl why`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scheduler.world import World


def why(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "avactl.cli.main", "why", "--kubeconfig", str(world.plane.kubeconfig)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_a_job_and_its_pods(world: World) -> None:
    world.node("a")
    world.ready()
    world.start()
    world.gang("train", 2)
    world.pod("runs", 2)
    world.bound("runs")
    world.waiting("train-0", "there are")
    told = why(world, "train", "-n", world.namespace)
    assert told.returncode == 0
    title, _, line = told.stdout.splitlines()
    assert title.strip() == f"{world.namespace}/train"
    assert line.startswith("train-0, train-1  waits")
    assert "needs 2 machines with 8 free GPUs; there are 0" in line
    told = why(world, f"{world.namespace}/runs")
    assert "has a node" in told.stdout
    assert "a, GPUs " in told.stdout
    told = why(world, "nobody", "-n", world.namespace)
    assert told.returncode == 2
    assert "there is no pod or job nobody" in told.stderr
