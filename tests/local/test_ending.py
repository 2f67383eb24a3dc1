"""Ends of runs: signals, failures and retries, the leader's end; nothing is left of any pod."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.local.running import LIMIT, SCRIPTS, command, copy_example, environment, local_run, rewrite, running
from tools.waiting import wait_until


@pytest.fixture
def training(tmp_path: Path) -> Path:
    copy = copy_example(tmp_path)
    for script in ("grandchildren.py", "fails.py"):
        shutil.copy(SCRIPTS / script, copy / "scripts")
    for job, script in (
        ("all-reduce", "all_reduce.py"),
        ("parameter-server", "parameter_server.py"),
        ("single", "linear.py"),
    ):
        rewrite(copy, job, f"scripts/{script}", "scripts/fails.py")
    return copy


def use_grandchildren(training: Path, job: str) -> None:
    rewrite(training, job, "scripts/fails.py", "scripts/grandchildren.py")


def started(output: str) -> list[int]:
    """Process IDs of all pods and their children."""
    return [int(pid) for line in re.findall(r"started ([\d ]+) end", output) for pid in line.split()]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(pid)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_every_process(training: Path, number: signal.Signals, code: int) -> None:
    use_grandchildren(training, "all-reduce")
    with running(training, "jobs/all-reduce.yaml", MODE="wait") as run:
        run.wait_for("worker-0 │ started", "worker-1 │ started", "worker-2 │ started")
        pids = started(run.output)
        assert len(alive(pids)) == len(pids) == 12
        assert run.end(number) == code
    assert alive(pids) == []
    assert f"{number.name}: ending 3 processes within 30 s" in run.output
    assert "TrainingJob research/linear-all-reduce stopped after" in run.output


def test_a_second_signal_kills(training: Path) -> None:
    use_grandchildren(training, "single")
    with running(training, "jobs/single.yaml", MODE="ignore") as run:
        run.wait_for("worker-0 │ started")
        run.process.send_signal(signal.SIGINT)
        run.wait_for("SIGINT: ending 1 process within 120 s; Ctrl-C again kills them")
        assert run.end(signal.SIGINT) == 130
    assert alive(started(run.output)) == []


def test_a_killed_command_line_ends_the_pods(training: Path) -> None:
    use_grandchildren(training, "single")
    with running(training, "jobs/single.yaml", MODE="wait") as run:
        run.wait_for("worker-0 │ started")
        pod = started(run.output)[-1]
        run.process.kill()
        wait_until(lambda: not alive([pod]))
        for child in alive(started(run.output)):
            signal.pidfd_send_signal(_opened(child), signal.SIGKILL)


def _opened(pid: int) -> int:
    import os

    return os.pidfd_open(pid)


def test_the_end_of_a_pod_ends_its_processes(training: Path) -> None:
    use_grandchildren(training, "single")
    done = local_run(training, "jobs/single.yaml", MODE="0")
    assert done.returncode == 0
    assert len(started(done.stdout)) == 4
    assert alive(started(done.stdout)) == []


def test_a_restart_begins_without_the_processes_of_the_last_attempt(training: Path) -> None:
    use_grandchildren(training, "single")
    with running(training, "jobs/single.yaml", MODE="1") as run:
        run.wait_for("exited with code 1; restart 1 of 3")
        child, own_session, _cleared, pod = started(run.output)[:4]
        assert alive([child, own_session, pod]) == []
        run.end(signal.SIGTERM)
    assert alive(started(run.output)) == []


def test_a_failed_pod_is_restarted(training: Path) -> None:
    done = local_run(training, "jobs/all-reduce.yaml", FAILS="worker-1", FAILURES="2")
    assert done.returncode == 0, done.stdout
    assert "worker-1 │ exited with code 7; restart 1 of 3 in 1 s" in done.stdout
    assert "worker-1 │ exited with code 7; restart 2 of 3 in 2 s" in done.stdout
    attempts = {path.stem: path.read_text() for path in training.glob("*.attempts")}
    assert attempts == {"worker-0": "x", "worker-1": "xxx", "worker-2": "x"}


@pytest.mark.parametrize(("job", "pod"), [("all-reduce", "worker-2"), ("parameter-server", "server-1")])
def test_a_pod_out_of_retries_fails_the_run(training: Path, job: str, pod: str) -> None:
    rewrite(training, job, "spec:\n", "spec:\n  retries: 1\n")
    done = local_run(training, f"jobs/{job}.yaml", FAILS=pod, FAILURES="9", WAITS="worker-0")
    assert done.returncode == 7, done.stdout
    assert f"{pod} │ failed with exit code 7 after 1 restart\n" in re.sub(" +│", " │", done.stdout)
    assert done.stdout.endswith("s\n")
    assert "failed with exit code 7 after" in done.stdout.splitlines()[-1]


def test_a_pod_that_says_too_often_that_it_is_replaced_has_failed(training: Path) -> None:
    rewrite(training, "elastic", "[python, scripts/elastic_pytorch.py]", "[sh, -c, exec python scripts/fails.py]")
    rewrite(training, "elastic", "spec:\n", "spec:\n  retries: 0\n")
    env = {"FAILS": "worker-1", "FAILURES": "9", "CODE": "79", "WAITS": "worker-0"}
    done = local_run(training, "jobs/elastic.yaml", "--workers", "2", **env)
    assert done.returncode == 79, done.stdout
    assert done.stdout.count("worker-1 │ exited with code 79: replaced, without using up a restart") == 2
    assert "worker-1 │ failed with exit code 79\n" in done.stdout


def test_followers_end_with_the_leader(training: Path) -> None:
    """The servers wait for ever; they are not restarted after the end, and the run succeeds."""
    done = local_run(training, "jobs/parameter-server.yaml", NEEDS="server-0 server-1")
    assert done.returncode == 0, done.stdout
    assert "exited" not in done.stdout
    assert (training / "server-1.attempts").read_text() == "x"


def test_an_elastic_job_ends_with_its_first_pod(training: Path) -> None:
    shell = "[sh, -c, exec python scripts/fails.py]"  # a Python command would be started by torchrun
    rewrite(training, "elastic", "[python, scripts/elastic_pytorch.py]", shell)
    rewrite(training, "elastic", "spec:\n", "spec:\n  retries: 0\n")
    # Two of four workers may fail for good, as `min` is 2; the others are ended with the first.
    env = {"FAILS": "worker-1", "FAILURES": "9", "WAITS": "worker-2 worker-3"}
    done = local_run(training, "jobs/elastic.yaml", AFTER="worker-1", **env)
    assert done.returncode == 0, done.stdout
    assert "worker-1 │ failed with exit code 7" in done.stdout
    done = local_run(training, "jobs/elastic.yaml", "--workers", "2", **env | {"WAITS": "worker-0"})
    assert done.returncode == 7, done.stdout


def test_an_evaluator_has_time_after_the_leader(training: Path) -> None:
    rewrite(training, "tensorflow", "scripts/tensorflow_servers.py", "scripts/fails.py")
    rewrite(training, "tensorflow", "  workers:", "  evaluator: {cpu: '1', memory: 1Gi}\n  workers:")
    with running(training, "jobs/tensorflow.yaml", NEEDS="evaluator-0", UNTIL="seen") as run:
        run.wait_for("evaluator-0 │ has 300 s to end; Ctrl-C kills it")
        (training / "seen").touch()
        assert run.end() == 0, run.output
    (training / "evaluator-0.attempts").unlink()
    with running(training, "jobs/tensorflow.yaml", NEEDS="evaluator-0", WAITS="evaluator-0") as run:
        run.wait_for("evaluator-0 │ has 300 s to end; Ctrl-C kills it")
        assert run.end(signal.SIGINT) == 130
    evaluator = int((training / "evaluator-0.pid").read_text())
    assert alive([evaluator]) == []


def test_a_reader_that_has_gone_ends_the_run(training: Path) -> None:
    # Kubernetes takes `$$` for `$`.
    rewrite(training, "single", "[python, scripts/fails.py]", "[sh, -c, 'while :; do echo $$$$; sleep 0.1; done']")
    shown = subprocess.Popen(
        command("jobs/single.yaml"), cwd=training, env=environment(training), stdout=subprocess.PIPE, text=True
    )
    assert shown.stdout is not None
    title, line = shown.stdout.readline(), shown.stdout.readline()
    while "│" not in line:
        line = shown.stdout.readline()
    shown.stdout.close()
    assert shown.wait(LIMIT) == 143, title
    assert alive([int(line.split()[-1])]) == []


def test_a_timeout_fails_the_run(training: Path) -> None:
    rewrite(training, "single", "spec:\n", "spec:\n  timeout: 1s\n")
    done = local_run(training, "jobs/single.yaml", WAITS="worker-0")
    assert done.returncode == 124, done.stdout
    assert "not done after its timeout of 1 s" in done.stdout
