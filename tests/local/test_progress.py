"""Progress of scripts in a local run, and how the worker library prints it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from avactl_worker import progress

from avactl.workbench.step_progress import read
from tests.local.running import SCRIPTS, copy_example, local_run, rewrite


def test_a_local_run_shows_the_progress_of_the_first_process(tmp_path: Path) -> None:
    training = copy_example(tmp_path)
    (training / "scripts/reports.py").write_text((SCRIPTS / "reports.py").read_text())
    rewrite(training, "all-reduce", "scripts/all_reduce.py", "scripts/reports.py")
    done = local_run(training, "jobs/all-reduce.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-0 │ step 1 of 100 (1%), epoch 1 of 2, loss 1\n" in done.stdout
    assert "worker-0 │ step 100 of 100 (100%), epoch 2 of 2, loss 0.01, " in done.stdout
    assert "worker-0 │ step 7, �]0;owned 1\n" in done.stdout
    assert 'worker-0 │ {"avactl_progress": "odd"}\n' in done.stdout  # what it is not is shown as it is
    assert done.stdout.count("step ") == 3, done.stdout


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.now, self.out, self._capsys = 100.0, "", capsys
        monkeypatch.setattr("avactl_worker.progress.time.monotonic", lambda: self.now)
        monkeypatch.setattr(progress, "_reporter", progress._Reporter())
        for name in progress._RANKS:
            monkeypatch.delenv(name, raising=False)

    def lines(self) -> list[dict[str, float]]:
        self.out += self._capsys.readouterr().out
        return [json.loads(line)["avactl_progress"] for line in self.out.splitlines()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    return World(monkeypatch, capsys)


def test_a_line_every_few_seconds_and_after_the_last_step(world: World) -> None:
    for step in range(1, 101):
        world.now += 0.125
        progress.report(step, 100, loss=0.5)
    progress.report(100, 100, loss=0.5)
    assert [line["step"] for line in world.lines()] == [1, 41, 81, 100]
    assert world.lines()[1] == {"step": 41, "steps": 100, "speed": 8, "loss": 0.5}
    world.now += 100
    progress.report(20, 100)  # from a checkpoint
    assert world.lines()[-1] == {"step": 20, "steps": 100}


def test_metrics_are_converted_when_they_are_shown_and_bounded(world: World) -> None:
    class Tensor:
        read = 0

        def __float__(self) -> float:
            Tensor.read += 1
            return 1 / 3

    for step in range(10):
        progress.report(
            step, None, records=1e30, nan=float("nan"), loss=Tensor(), **{f"m{'x' * 99}{n}": n for n in range(50)}
        )
    assert Tensor.read == 1
    (line,) = world.lines()
    assert (line["loss"], line["records"]) == (0.333333, int(1e30))
    assert "nan" not in line
    assert len(line) <= 2 + 8
    assert read(world.out) is not None
    assert len(world.out) < 1000


@pytest.mark.parametrize(
    ("env", "first"),
    [
        ({}, True),
        ({"RANK": "0", "AVACTL_INDEX": "0"}, True),
        ({"RANK": "3", "AVACTL_INDEX": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "1"}, False),
        ({"AVACTL_INDEX": "2"}, False),
        ({"RANK": "0", "AVACTL_INDEX": "2"}, False),  # torchrun in each pod of an elastic job
    ],
)
def test_the_first_process_prints(
    world: World, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], first: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    progress.report(1)
    assert bool(world.lines()) is first


def test_a_closed_output_does_not_end_training(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        progress.report(1)
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            broken.close()
