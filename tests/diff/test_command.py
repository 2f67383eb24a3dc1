"""`avactl diff` on real repositories: revisions, formats, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import forked
from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job, workspace


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path / "repo")
    found.commit({"platform.yaml": PLATFORM, "jobs.yaml": HEAD + job()})
    return found


def avactl(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["diff", *args], cwd=directory, env={**os.environ, "AVACTL_DEBUG": "1"})


def test_the_work_tree_against_the_last_commit(repository: Repository) -> None:
    done = avactl(repository.root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no changes\n", "")
    repository.write({"jobs.yaml": HEAD + job(retries=7)})
    done = avactl(repository.root)
    assert done.returncode == 0
    assert done.stdout.startswith("TrainingJob vision/j   retries 3 → 7")
    assert done.stdout.endswith("1 intent changed, 1 object (0 new, 1 changed, 0 deleted)\n")
    assert repository.git("status", "--porcelain") == "M jobs.yaml"


def test_the_full_text_has_whole_values_and_manifests(repository: Repository) -> None:
    repository.write({"jobs.yaml": HEAD + job(env={"A": "x" * 500}), "w.yaml": HEAD + workspace()})
    short, full = (avactl(repository.root, *args).stdout for args in ((), ("--full",)))
    assert full.startswith(short)
    assert "x" * 500 in full
    assert "x" * 500 not in short
    assert "(500 characters)" in short
    assert "    + kind: StatefulSet\n" in full
    for other in ("--no-objects", "--format=json", "--live"):
        assert avactl(repository.root, "--full", other).returncode == 2


def test_exit_code(repository: Repository) -> None:
    assert avactl(repository.root, "--exit-code").returncode == 0
    repository.write({"jobs.yaml": HEAD + job(retries=7)})
    assert avactl(repository.root, "--exit-code").returncode == 4


def test_two_revisions_and_what_a_branch_adds(repository: Repository) -> None:
    repository.git("switch", "-q", "-c", "topic")
    repository.commit({"more.yaml": HEAD + workspace()})
    repository.git("switch", "-q", "main")
    repository.commit({"jobs.yaml": HEAD + job(retries=7)})
    both = json.loads(avactl(repository.root, "--base", "main", "--head", "topic", "-f", "json").stdout)
    assert {intent["name"] for intent in both["intents"]} == {"j", "w"}
    own = json.loads(avactl(repository.root, "--base", "main", "--head", "topic", "--merge-base", "-f", "json").stdout)
    assert {intent["name"] for intent in own["intents"]} == {"w"}


def test_a_part_of_the_repository(repository: Repository) -> None:
    repository.write({"avactl.yaml": "{}", "jobs.yaml": HEAD + job(retries=7), "w/w.yaml": HEAD + workspace()})
    part = avactl(repository.root, "w").stdout
    assert "TrainingJob" not in part
    assert "Workspace vision/w" in part
    assert avactl(repository.root / "w").stdout == part


def test_a_repository_below_the_root_of_git(repository: Repository) -> None:
    repository.write({"below/platform.yaml": PLATFORM, "below/jobs.yaml": HEAD + job("inner")})
    done = avactl(repository.root, "below")
    assert "TrainingJob vision/inner" in done.stdout
    assert "vision/j " not in done.stdout


def test_a_head_with_errors_shows_them(repository: Repository) -> None:
    repository.write({"jobs.yaml": HEAD + job(strategy="allReduc")})
    done = avactl(repository.root)
    assert done.returncode == 1
    assert "error[invalid-value]" in done.stdout
    assert "did you mean `allReduce`?" in done.stdout
    problems = json.loads(avactl(repository.root, "-f", "json").stdout)["problems"]
    assert [problem["code"] for problem in problems] == ["invalid-value"]
    markdown = avactl(repository.root, "-f", "markdown")
    assert markdown.returncode == 1
    assert "### It does not compile" in markdown.stdout
    repository.commit()
    done = avactl(repository.root, "--base", "HEAD~1", "--head", "HEAD")
    assert done.returncode == 1
    assert "jobs.yaml:4" in done.stdout


def test_a_base_with_errors_is_said(repository: Repository) -> None:
    repository.commit({"jobs.yaml": HEAD + job(strategy="allReduc")})
    repository.write({"jobs.yaml": HEAD + job()})
    done = avactl(repository.root)
    assert done.returncode == 0
    assert "the base does not compile (1 error)" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--base", "nope"], 3, "unknown revision `nope`"),
        (["--head", "nope"], 3, "unknown revision `nope`"),
        (["missing"], 2, "missing: no such file or directory"),
        (["--format", "yaml"], 2, "yaml"),
    ],
)
def test_what_cannot_be_compared(repository: Repository, args: list[str], code: int, said: str) -> None:
    done = avactl(repository.root, *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_repository(tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text(PLATFORM)
    done = avactl(tmp_path)
    assert done.returncode == 3
    assert "is not in a git repository" in done.stderr
    assert len(done.stderr.splitlines()) == 2
