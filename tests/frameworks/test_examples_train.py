"""The examples, trained by real frameworks through local runs, have the losses of the plain script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from avactl.workbench import step_progress
from tests.local.running import copy_example, environment, local_run, losses, plain_losses, running
from tools.frameworks.build import build_environment

EXACT = 2e-6
"""Losses are printed with six digits; sums in another order differ less."""
pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="session")
def path() -> str:
    """A PATH whose `python` has the frameworks."""
    return f"{build_environment()}:{os.environ['PATH']}"


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


@pytest.mark.parametrize(
    ("job", "size"),
    [
        ("pytorch", "4 workers"),
        ("jax", "2 workers"),
        ("tensorflow", "2 workers, 1 servers, from epoch 0"),
        pytest.param("mpi", "4 ranks", marks=pytest.mark.needs("mpirun")),
    ],
)
def test_losses_equal_the_plain_script(training: Path, path: str, job: str, size: str) -> None:
    done = local_run(training, f"jobs/{job}.yaml", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"│ {size}\n" in done.stdout
    assert losses(done.stdout) == pytest.approx(plain_losses(), abs=EXACT)


KERAS = """
import numpy as np, tensorflow as tf
from avactl_worker.tensorflow import Report
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
features = np.ones((128, 4), "float32")
model.fit(features, features, batch_size=32, epochs=2, verbose=0, callbacks=[Report(batch_size=32)])
"""


def test_keras_reports_progress(path: str, tmp_path: Path) -> None:
    env = environment(tmp_path, PATH=path)
    done = subprocess.run(["python", "-c", KERAS], capture_output=True, text=True, check=True, env=env)
    told = [progress for line in done.stdout.splitlines() if (progress := step_progress.read(line))]
    assert [(each.step, each.steps, each.epoch, each.records) for each in (told[0], told[-1])] == [
        (1, 8, 1, 32),
        (8, 8, 2, 32),
    ]
    assert told[-1].metric == "loss"


@pytest.mark.parametrize("job", ["elastic", "elastic-tensorflow"])
def test_elastic_workers_are_killed(training: Path, path: str, job: str) -> None:
    """One of them is stopped first, so its connections stay open until the master takes it for lost."""
    slow_down(training)
    with running(training, f"jobs/{job}.yaml", PATH=path) as run:
        run.wait_for("epoch 1 loss", *(f'worker joined","name":"worker-{index}"' for index in range(4)))
        first = re.search(r"worker-(\d) +│ epoch 1 loss", run.output)
        assert first
        stopped, killed, *_ = sorted({"1", "2", "3"} - {first[1]})
        (pid,) = run.pods_with(f"AVACTL_WORKER=worker-{stopped}")
        os.kill(pid, signal.SIGSTOP)
        run.wait_for(f'worker lost","name":"worker-{stopped}"')
        os.kill(pid, signal.SIGKILL)
        run.wait_for("epoch 3 loss")
        (pid,) = run.pods_with(f"AVACTL_WORKER=worker-{killed}")
        os.kill(pid, signal.SIGKILL)
        assert run.end() == 0, run.output
    assert losses(run.output) == pytest.approx(plain_losses(), abs=EXACT)
    assert run.output.count("round broken") >= 2
    assert re.search(r"worker-0 +│ \d workers at the end", run.output)


def test_a_killed_parameter_server(training: Path, path: str) -> None:
    """The server is restarted, and the chief's next attempt goes on from the last checkpoint."""
    slow_down(training)
    with running(training, "jobs/tensorflow.yaml", PATH=path) as run:
        run.wait_for("epoch 2 loss")
        os.kill(server(run.process.pid), signal.SIGKILL)
        assert run.end() == 0, run.output
    assert re.search(r"server-0 +│ exited with code 137; restart 1 of 3", run.output)
    restored = [int(epoch) for epoch in re.findall(r"2 workers, 1 servers, from epoch (\d+)", run.output)]
    assert restored[0] == 0
    assert restored[-1] >= 2
    found = {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.]+)", run.output)}
    assert [found[epoch] for epoch in sorted(found)] == pytest.approx(plain_losses(), abs=EXACT)


def server(runner: int) -> int:
    """Process of the parameter server below a local run."""
    for child in map(int, Path(f"/proc/{runner}/task/{runner}/children").read_text().split()):
        if b"\0HOSTNAME=linear-tensorflow-server-0\0" in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return child
    raise AssertionError("the parameter server does not run")


def test_a_killed_script_goes_on_from_its_checkpoint(training: Path, path: str) -> None:
    slow_down(training)
    with running(training, "jobs/resume.yaml", PATH=path) as run:
        run.wait_for("epoch 4 loss")
        [worker] = run.pods_with("AVACTL_JOB=linear-resume")
        os.kill(worker, signal.SIGKILL)
        assert run.end() == 0, run.output
    assert "exited with code 137; restart 1 of 3" in run.output
    first, again = (int(epoch) for epoch in re.findall(r"from epoch (\d+)", run.output))
    assert (first, again > 1) == (0, True)
    found = {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.]+)", run.output)}
    assert [found[epoch] for epoch in sorted(found)] == pytest.approx(plain_losses(), abs=EXACT)


def test_a_stopped_script_goes_on_in_the_next_run(training: Path, path: str) -> None:
    slow_down(training)
    with running(training, "jobs/resume.yaml", PATH=path) as run:
        run.wait_for("epoch 2 loss")
        assert run.end(signal.SIGTERM) == 143
    saved = re.search(r"terminated: saved step (\d+) to /", run.output)
    assert saved is not None, run.output
    done = local_run(training, "jobs/resume.yaml", PATH=path)
    assert f"from epoch {saved[1]}\n" in done.stdout
    assert "epoch 9 loss" in done.stdout


def slow_down(training: Path) -> None:
    """Let each epoch take a second."""
    slow = "\n\nimport time\n\n_show = show\n\n\ndef show(*values):\n    _show(*values)\n    time.sleep(1)\n"
    script = training / "scripts/linear.py"
    script.write_text(script.read_text().replace("\n\ndef main()", f"{slow}\n\ndef main()"))
