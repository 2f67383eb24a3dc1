"""Bad input: one clear message each, and nothing is started."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.local.running import copy_example, local_run, rewrite, running

USAGE, MISSING = 2, 3


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


def refused(training: Path, code: int, *words: str, **env: str) -> str:
    """The message, without its prefix; nothing was printed by a pod."""
    done = local_run(training, *words, **env)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("avactl: ")
    return "\n".join(line.strip() for line in done.stderr.removeprefix("avactl: ").splitlines())


def test_unknown_job(training: Path) -> None:
    said = refused(training, USAGE, "jobs/single.yaml", "linea")
    assert said == "no job in jobs/single.yaml is named linea\ndid you mean `linear`?"
    assert refused(training, USAGE, ".", "x").startswith("no job in the repository is named x\njobs: clicks, linear, ")


def test_several_jobs(training: Path) -> None:
    both = training / "jobs/single.yaml"
    both.write_text(both.read_text() + "---\n" + both.read_text().replace("name: linear", "name: other"))
    said = refused(training, USAGE, "jobs/single.yaml")
    assert said == "several jobs in jobs/single.yaml\nadd the name of one: linear, other"
    assert local_run(training, "jobs/single.yaml", "research/other").returncode == 0


def test_a_file_without_a_job(training: Path) -> None:
    said = refused(training, USAGE, "platform.yaml")
    assert said.startswith("no job in platform.yaml\nfiles with jobs: jobs/all-reduce.yaml, ")
    assert refused(training, USAGE, "jobs/none.yaml") == "jobs/none.yaml: no such file or directory"


@pytest.mark.parametrize(
    ("job", "workers", "message"),
    [
        ("elastic", "5", "5 workers: the job has `min` 2 and `max` 4"),
        ("elastic", "1", "1 workers: the job has `min` 2 and `max` 4"),
        ("single", "2", "spec.workers.replicas: strategy `single` uses one pod, got 2"),
        ("tensorflow", "1", "the first worker is TensorFlow's chief, which needs at least one other worker"),
        ("mpi", "600", "mpirun's commands for 600 workers do not fit into a ConfigMap"),
    ],
)
def test_too_many_or_too_few_workers(training: Path, job: str, workers: str, message: str) -> None:
    said = refused(training, USAGE, f"jobs/{job}.yaml", "--workers", workers)
    assert said.startswith(f"--workers {workers}: ")
    assert message in said


def test_more_pods_than_a_machine_runs(training: Path) -> None:
    said = refused(training, USAGE, "jobs/all-reduce.yaml", "--workers", "300")
    assert "has 300 pods; one machine runs at most 200\nuse fewer: `--workers N`" in said


def test_command_not_found(training: Path) -> None:
    rewrite(training, "single", "[python, scripts/linear.py]", "[no-such-program]")
    said = refused(training, MISSING, "jobs/single.yaml")
    assert said == (
        "worker: command `no-such-program` not found\ninstall it: the job runs in your environment, not in its image"
    )
    rewrite(training, "single", "[no-such-program]", "[]")
    said = refused(training, MISSING, "jobs/single.yaml")
    assert said == "worker runs the command of its image, which is not used here\nwrite `command` in the spec"


@pytest.mark.parametrize("options", ["", "-u, -X, dev, "])
def test_module_not_found(training: Path, options: str) -> None:
    """It is told at once: a pod that cannot start would be retried."""
    rewrite(training, "single", "[python, scripts/linear.py]", f"[python, {options}-m, no_such_package.run, a.py]")
    said = refused(training, MISSING, "jobs/single.yaml")
    assert re.fullmatch(
        r"worker: \S+/python has no module `no_such_package`\n"
        "install it: the job runs in your environment, not in its image",
        said,
    ), said


def test_a_module_of_the_checkout(training: Path) -> None:
    (training / "own.py").write_text("print('it runs')")
    rewrite(training, "single", "[python, scripts/linear.py]", "[python, -m, own]")
    assert local_run(training, "jobs/single.yaml").returncode == 0


def test_a_secret(training: Path) -> None:
    script = "import os, sys; sys.exit(os.environ['API_TOKEN'] != 'from-the-caller')"
    rewrite(training, "single", "[python, scripts/linear.py]", f'[python, -c, "{script}"]')
    rewrite(training, "single", "spec:\n", "spec:\n  env: {API_TOKEN: {secret: {name: api, key: token}}}\n")
    said = refused(training, MISSING, "jobs/single.yaml")
    assert said == (
        "linear-worker-0: API_TOKEN is in the cluster's Secret api (key token)\n"
        "set it for this run: `export API_TOKEN=…`"
    )
    assert local_run(training, "jobs/single.yaml", API_TOKEN="from-the-caller").returncode == 0


def test_directories(training: Path, tmp_path: Path) -> None:
    assert "not PATH=DIRECTORY" in refused(training, USAGE, "jobs/single.yaml", "--mount", "data")
    said = refused(training, USAGE, "jobs/single.yaml", "--mount", "/data=none")
    assert said == "--mount /data=none: none is not a directory"
    assert refused(training, USAGE, "jobs/single.yaml", "-C", "none") == "--directory none: no such directory"


def test_errors_in_the_specs(training: Path) -> None:
    rewrite(training, "single", "framework: custom", "framework: custm")
    done = local_run(training, "jobs/all-reduce.yaml")
    assert done.returncode == 1
    assert "error[invalid-value]" in done.stderr
    assert "jobs/single.yaml:5" in done.stderr


def test_code_from_git_is_the_checkout(training: Path) -> None:
    digest = "sha256:" + "0" * 64
    platform = training / "platform.yaml"
    images = f"images:\n    git: registry.example.com/git@{digest}\n"
    platform.write_text(platform.read_text().replace("images:\n", images))
    commit = "4ee74a3b3b2ab37a4a9a1a6e9d2b8d4f6c0d1e2f"
    git = f"code: {{git: {{url: https://git.example.com/a.git, ref: {commit}, path: scripts, mount: /code}}}}"
    rewrite(training, "single", "spec:\n", f"spec:\n  {git}\n")
    rewrite(training, "single", "scripts/linear.py", "/code/scripts/linear.py")
    done = local_run(training, "jobs/single.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"code: {training} instead of https://git.example.com/a.git at {commit}\n" in done.stdout
    said = refused(training / "scripts", MISSING, "../jobs/single.yaml")
    assert said == (
        f"worker runs in {training}/scripts/scripts, which does not exist\n"
        "run the command in a checkout of the code, or name one: `--directory DIR`"
    )
    assert local_run(training / "scripts", "../jobs/single.yaml", "-C", "..").returncode == 0


def test_one_run_of_a_job_at_a_time(training: Path) -> None:
    rewrite(training, "single", "[python, scripts/linear.py]", "[sh, -c, 'echo runs; sleep 600']")
    with running(training, "jobs/single.yaml") as run:
        run.wait_for("worker-0 │ runs")
        said = refused(training, USAGE, "jobs/single.yaml")
        assert said == (
            "TrainingJob research/linear is already running here\nend that run, or use another `--directory`"
        )
        assert run.end(signal.SIGTERM) == 143
