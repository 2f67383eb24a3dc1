"""A NumPy model, trained through the addresses of each strategy, has the losses of the plain script."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.local.running import SCRIPTS, copy_example, local_run, losses, plain_losses, rewrite, running
from tests.test_layout import ROOT

EXACT = 2e-6
"""Losses are printed with six digits; sums in another order differ less."""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


def trains(done: subprocess.CompletedProcess[str], size: str = "") -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(done.stdout) == pytest.approx(plain_losses(), abs=EXACT)
    assert f"│ {size}\n" in done.stdout or not size, done.stdout


def test_single(training: Path) -> None:
    trains(local_run(training, "jobs/single.yaml"))
    volume = training / ".avactl/local/research.linear/volumes/linear-checkpoint"
    assert [path.name for path in volume.iterdir()] == ["weights.npy"]


def test_all_reduce(training: Path) -> None:
    trains(local_run(training, "jobs/all-reduce.yaml"), "3 workers")
    trains(local_run(training, "jobs/all-reduce.yaml", "--workers", "5"), "5 workers")


def test_the_health_check_is_left_out(training: Path) -> None:
    done = local_run(training, "jobs/checked.yaml")
    trains(done, "3 workers")
    assert "no health check: all workers are on this machine" in done.stdout + done.stderr


def test_groups_of_workers(training: Path) -> None:
    groups = "  workerGroups: [{name: old, replicas: 2, memory: 2Gi}, {name: spare}]\n"
    rewrite(training, "all-reduce", "  workers: {", f"{groups}  workers: {{")
    trains(local_run(training, "jobs/all-reduce.yaml"), "6 workers")
    servers = "  serverGroups: [{name: big, memory: 2Gi}]\n"
    rewrite(training, "parameter-server", "  workers: {", f"{groups}{servers}  workers: {{")
    trains(local_run(training, "jobs/parameter-server.yaml"), "6 workers, 3 servers")


def test_parameter_server(training: Path) -> None:
    trains(local_run(training, "jobs/parameter-server.yaml"), "3 workers, 2 servers")


def test_bounded_staleness(training: Path) -> None:
    """The clock of the job master keeps the workers together."""
    done = local_run(training, "jobs/stale.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"worker-(\d) +│ step 60 loss ([\d.]+)", done.stdout)
    assert sorted(index for index, _ in ends) == ["0", "1", "2"]
    assert all(float(loss) < plain_losses()[-1] for _, loss in ends)
    assert done.stdout.count("worker joined") == 3
    assert "Traceback" not in done.stdout


def test_backup_workers(training: Path) -> None:
    """The job does not wait for its slowest worker, and ends when that learns that the others have ended."""
    script = training / "scripts/stale.py"
    text = script.read_text()
    slow = "        gradient, _ = linear"
    assert slow in text
    script.write_text(text.replace(slow, f"        __import__('time').sleep(0.5 if index == 2 else 0.005)\n{slow}"))
    done = local_run(training, "jobs/backup.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"worker-(\d) +│ step 60 loss ([\d.]+)", done.stdout)
    assert {index for index, _ in ends} >= {"0", "1", "3"}
    assert all(float(loss) < plain_losses()[-1] for _, loss in ends)
    assert not re.search(r"worker-2 +│ step 20 ", done.stdout)  # it was not there
    assert "Traceback" not in done.stdout


def test_the_documented_command(training: Path) -> None:
    """docs/local-run.md shows what is printed."""
    text = (ROOT / "docs/local-run.md").read_text()
    block = re.search(r"\$ avactl local run (.*)\n((?:.*\n)*?)```", text)
    assert block
    done = local_run(training, *block[1].split())
    printed = iter(re.sub(r"after [\d.]+ s$", "after 0.5 s", done.stdout, flags=re.MULTILINE).splitlines())
    # On a busy machine, a pod may be started again before another one listens.
    missing = [line for line in block[2].splitlines() if line != "…" and line not in printed]
    assert not missing, done.stdout


def test_torchrun(training: Path) -> None:
    """Static rendezvous by PET_*, under a stand-in for torchrun that reads them as torchrun does."""
    rewrite(training, "pytorch", "scripts/ddp.py", "scripts/all_reduce.py")
    trains(local_run(training, "jobs/pytorch.yaml", modules=str(SCRIPTS)), "4 workers")


def test_elastic(training: Path) -> None:
    """Workers make synchronous steps, also with another number of them than the job has at most."""
    trains(local_run(training, "jobs/elastic-numpy.yaml"))
    trains(local_run(training, "jobs/elastic-numpy.yaml", "--workers", "2"))


def test_elastic_workers_and_the_master_are_killed(training: Path) -> None:
    """The loss of each epoch stays that of the plain script."""
    rewrite(training, "elastic-numpy", "preemptible: false", "preemptible: false\n  env: {STEP_SECONDS: '0.3'}")
    with running(training, "jobs/elastic-numpy.yaml") as run:
        run.wait_for("epoch 1 loss")
        found = re.search(r"worker-(\d) +│ epoch 1 loss", run.output)
        assert found
        for index in {"1", "2", "3"} - {found[1]}:
            (pid,) = run.pods_with(f"AVACTL_WORKER=worker-{index}")
            os.kill(pid, signal.SIGKILL)
        run.wait_for("epoch 3 loss")
        (pid,) = run.pods_with("POD_NAME=linear-elastic-numpy-master-0")
        os.kill(pid, signal.SIGKILL)
        assert run.end() == 0, run.output
    assert losses(run.output) == pytest.approx(plain_losses(), abs=EXACT)
    assert "round broken" in run.output
    assert re.search(r"master-0 +│ exited with code 137", run.output), run.output
    assert re.search(r"worker-0 +│ \d workers at the end", run.output)


def test_elastic_shards(training: Path) -> None:
    """Workers get their data from the job master; a worker and the master are killed."""
    shutil.copy(SCRIPTS / "slow_score.py", training / "scripts")
    rewrite(training, "elastic-shards", "scripts/score.py", "scripts/slow_score.py")
    with running(training, "jobs/elastic-shards.yaml") as run:
        run.wait_for("dataset registered", *(f'worker joined","name":"worker-{index}"' for index in range(4)))
        for variable in ("POD_NAME=scores-master-0", "AVACTL_WORKER=worker-2"):
            (pid,) = run.pods_with(variable)
            os.kill(pid, signal.SIGKILL)
        assert run.end() == 0, run.output
    assert "master-0 │ exited with code 137; restart 1 of 3" in run.output
    assert "worker-2 │ exited with code 137; restart 1 of 3" in run.output
    volume = training / ".avactl/local/research.scores/volumes/scores-checkpoint"
    assert len(list(volume.glob("[0-9]*.npy"))) == 64
    assert "worker-0 │ 4096 records, mean score 0.023961" in run.output


def test_tensorflow_config(training: Path) -> None:
    """TF_CONFIG names every process once: TensorFlow's servers listen on all addresses, so the ports differ, too."""
    shutil.copy(SCRIPTS / "tf_config.py", training / "scripts")
    rewrite(training, "tensorflow", "scripts/tensorflow_servers.py", "scripts/tf_config.py")
    trains(local_run(training, "jobs/tensorflow.yaml"), "3 workers, 1 servers")


@pytest.mark.needs("mpirun")
def test_mpi(training: Path) -> None:
    trains(local_run(training, "jobs/mpi.yaml"), "4 ranks")
    trains(local_run(training, "jobs/mpi.yaml", "--workers", "1"), "2 ranks")


def test_two_runs_at_once(training: Path, tmp_path: Path) -> None:
    """Each run has addresses of its own, and another port than one that is in use on all addresses."""
    other = copy_example(tmp_path / "other")
    shutil.copy(SCRIPTS / "hold.py", other / "scripts")
    rewrite(other, "all-reduce", "scripts/all_reduce.py", "scripts/hold.py")
    with running(other, "jobs/all-reduce.yaml") as held:
        held.wait_for("worker-0 │ listening")
        done = local_run(training, "jobs/all-reduce.yaml")
        trains(done, "3 workers")
        # Another test may have had the port when the first run began.
        assert "instead of 29500, which is in use" in held.output + done.stdout


@pytest.fixture
def uneven(training: Path) -> Path:
    """A job in which each failure would be the end."""
    for script in SCRIPTS.glob("uneven_*.py"):
        shutil.copy(script, training / "scripts")
    rewrite(training, "elastic-shards", "scripts/score.py", "scripts/uneven_tasks.py")
    rewrite(training, "elastic-shards", "spec:\n", "spec:\n  retries: 0\n  stragglers: {below: 0.3, after: 1s}\n")
    return training


REPLACED = "worker-2 │ exited with code 79: replaced, without using up a restart"


def test_a_slow_worker_is_replaced(uneven: Path) -> None:
    """It hands its work back: no task is done twice."""
    done = local_run(uneven, "jobs/elastic-shards.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"worker-2 │ the master replaces this worker: it works at 0\.[12]\d of the median speed", done.stdout
    )
    assert REPLACED in done.stdout
    assert "worker-2 │ this is another process" in done.stdout
    assert done.stdout.count("exited with code") == 1, done.stdout
    lines = (uneven / ".avactl/local/research.scores/volumes/scores-checkpoint/done").read_text().splitlines()
    assert sorted(int(line.split()[1]) for line in lines) == list(range(0, 6000, 10))


def test_a_slow_worker_is_reported_only(uneven: Path) -> None:
    rewrite(uneven, "elastic-shards", "{below: 0.3, after: 1s}", "{action: report}")
    done = local_run(uneven, "jobs/elastic-shards.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replace" not in done.stdout


def test_a_slow_worker_is_replaced_once_if_the_master_is_killed(uneven: Path) -> None:
    rewrite(uneven, "elastic-shards", "retries: 0", "retries: 1")
    with running(uneven, "jobs/elastic-shards.yaml") as run:
        run.wait_for('"worker replaced","name":"worker-2"')
        (pid,) = run.pods_with("POD_NAME=scores-master-0")
        os.kill(pid, signal.SIGKILL)
        assert run.end() == 0, run.output
    assert REPLACED in run.output
    assert run.output.count('"worker replaced"') == 1, run.output
    assert "master-0 │ exited with code 137; restart 1 of 1" in run.output


def test_a_slow_worker_of_synchronous_training_is_replaced(uneven: Path) -> None:
    rewrite(uneven, "elastic-shards", "uneven_tasks", "uneven_steps")
    done = local_run(uneven, "jobs/elastic-shards.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert REPLACED in done.stdout
    assert "worker-2 │ this is another process" in done.stdout
    assert done.stdout.count("exited with code") == 1, done.stdout
    assert "worker-0 │ records seen [2] times by 4 workers" in done.stdout, done.stdout
