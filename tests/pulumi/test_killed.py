"""Runs of the real engine that are killed, and the runs after them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from avactl.apply.pulumi.engine import PulumiEngineError
from tests.pulumi.conftest import Repository
from tests.pulumi.test_engine import run, uid
from tools.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


def where(repository: Repository) -> list[str]:
    kubeconfig = str(repository.plane.kubeconfig)
    return [str(repository.root), "--stack", f"main.{repository.team}", "--kubeconfig", kubeconfig]


def kill_up(repository: Repository, until: Callable[[], bool]) -> None:
    """Run `up`, and kill it with the engine at a moment; release the lock that it leaves behind."""
    command = [sys.executable, "-m", "avactl.cli.main", "up", "--yes", *where(repository)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: until() or process.poll() is not None, poll=0.02)
    assert process.poll() is None, "the run ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    release(repository)


def release(repository: Repository) -> None:
    """Do what `pulumi cancel` does, which wants the project's directory."""
    project = repository.project()
    repository.pulumi(project, "cancel", "--yes", "--stack", f"main.{repository.team}")
    shutil.rmtree(project)


def up(repository: Repository) -> str:
    code, text = run("up", "--yes", *where(repository))
    assert code == 0, text
    return text


def is_applied(repository: Repository) -> None:
    """Everything is as declared, in the state and in the cluster, and the next run has nothing to do."""
    assert "" not in repository.versions().values()
    session = repository.session()
    assert not session.unfinished
    session.refresh()
    assert session.preview().counts == {}
    assert "no changes" in up(repository)


def test_a_new_stack(repository: Repository) -> None:
    """Nothing is made twice; what no spec declares any more is named."""
    kill_up(repository, lambda: repository.live("PersistentVolumeClaim", "anna-home") is not None)
    home = uid(repository.live("PersistentVolumeClaim", "anna-home"))
    work = (repository.root / "work.yaml").read_text()
    first, _, rest = work.partition("---\n")
    assert "name: anna" in first
    (repository.root / "work.yaml").write_text(rest)
    code, text = run("up", "--yes", *where(repository))
    assert (code, "an unfinished run created" in text, "anna-home" in text) == (3, True, True), text
    (repository.root / "work.yaml").write_text(work)
    assert "the last run did not finish" in up(repository)
    assert uid(repository.live("PersistentVolumeClaim", "anna-home")) == home
    is_applied(repository)


def test_a_replaced_job_does_not_run_again(repository: Repository) -> None:
    up(repository)

    def job() -> dict[str, Any] | None:
        return repository.live("Job", "resnet-worker")

    before = uid(job())
    change = ("command: [python,", "command: [python3,")
    work = (repository.root / "work.yaml").read_text()
    assert change[0] in work
    repository.write(change)
    kill_up(repository, lambda: (found := job()) is not None and uid(found) != before)
    after = uid(job())
    up(repository)
    assert uid(job()) == after
    is_applied(repository)
    # The change is taken back after another killed run.
    repository.write()
    kill_up(repository, lambda: (found := job()) is not None and uid(found) != after)
    repository.write(change)
    up(repository)
    assert uid(job()) != after
    is_applied(repository)


def test_a_run_that_another_overtook_is_refused(repository: Repository) -> None:
    """What the other has applied is neither undone in the state nor taken for declared."""
    session = repository.session()
    other = up(repository)
    assert " new" in other, other
    with pytest.raises(PulumiEngineError, match="another run has applied it meanwhile"):
        session.up()
    is_applied(repository)


@pytest.mark.slow
def test_any_moment(repository: Repository) -> None:
    """Property: after 20 runs killed at any moment, with changes in between, one run more makes everything right."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    choose = random.Random(seed)
    changes = (
        (),
        (("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: anna,"),),
        (("command: [python,", "command: [python3,"),),
    )
    for _ in range(20):
        repository.write(*choose.choice(changes))
        command = [sys.executable, "-m", "avactl.cli.main", "up", "--yes", *where(repository)]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(choose.uniform(1.0, 9.0))
        with contextlib.suppress(ProcessLookupError):  # it ended before
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        release(repository)
    repository.write(*choose.choice(changes))
    up(repository)
    is_applied(repository)
