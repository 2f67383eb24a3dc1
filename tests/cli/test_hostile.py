"""The command among odd files, names, streams and locales: one clear line, never a defect, nothing that hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Run
from tools.waiting import patience

CLUSTER = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: train, team: vision}
spec:
  image: registry.example.com/train:1
  command: [python, train.py]
"""


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    line = command.replace("avactl", f"{sys.executable} -m avactl.cli.main")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AVACTL_")}
    env["XDG_CACHE_HOME"] = str(cwd.parent / "cache")
    return subprocess.run(["sh", "-c", line], cwd=cwd, env=env, capture_output=True, check=False, timeout=patience())


def test_a_huge_file_is_told_at_once(tmp_path: Path, avactl: Run) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(100 * 2**20)
    for arguments in (["validate"], ["validate", "x.yaml"], ["render", "-o", "-"], ["set", "x.yaml", "a=1"]):
        shown = avactl(*arguments)
        assert shown.returncode == 1
        assert "error[file-too-large]" in shown.stdout + shown.stderr


def test_a_pipe_as_argument_is_wrong_usage(tmp_path: Path, avactl: Run) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    shown = avactl("validate", "x.yaml")
    assert shown.returncode == 2
    assert "neither a file nor a directory" in shown.stderr


def test_a_link_out_of_the_repository_as_argument(tmp_path: Path, avactl: Run) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "out.yaml").write_text("password: hunter2")
    (tmp_path / "repo" / "x.yaml").symlink_to("../out.yaml")
    shown = avactl("validate", "x.yaml", cwd=tmp_path / "repo")
    assert shown.returncode == 1
    assert "leads out of the repository" in shown.stdout
    assert "hunter2" not in shown.stdout


def test_a_name_that_is_not_utf8(tmp_path: Path, avactl: Run) -> None:
    (tmp_path / os.fsdecode(b"b\xff.yaml")).write_text("kind: x\n")
    assert avactl("validate").returncode == 1
    assert json.loads(avactl("validate", "--format", "json").stdout)[0]["file"] == "b\ufffd.yaml"
    sarif = json.loads(avactl("validate", "--format", "sarif").stdout)
    location = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "b%FF.yaml"


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_the_same_bytes_under_every_locale(tmp_path: Path, avactl: Run, locale: dict[str, str]) -> None:
    (tmp_path / "größe").mkdir()
    (tmp_path / "größe" / "x.yaml").write_text(CLUSTER)
    assert avactl("render", "-o", "-", **locale).stdout == avactl("render", "-o", "-").stdout != ""
    (tmp_path / "größe" / "y.yaml").write_text("kind: größe\n")
    assert avactl("validate", **locale).stdout == avactl("validate").stdout


@pytest.mark.parametrize("command", ["validate", "render -o -", "explain TrainingJob", "validate --format json"])
def test_streams_that_are_full_or_closed(tmp_path: Path, command: str) -> None:
    (tmp_path / "x.yaml").write_text(CLUSTER)
    full = shell(f"avactl {command} > /dev/full", tmp_path)
    assert full.returncode == 3
    assert full.stderr == b"avactl: output: No space left on device\n"
    closed = shell(f"avactl {command} >&-", tmp_path)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    shown = shell("rmdir ../gone; avactl validate", tmp_path / "gone")
    assert (shown.returncode, shown.stderr) == (3, b"avactl: the current directory was deleted\n")


def test_many_problems_of_one_spec_do_not_take_for_ever(tmp_path: Path, avactl: Run) -> None:
    keys = ", ".join(f"key{i}: 1" for i in range(50_000))
    (tmp_path / "x.yaml").write_text(f"{CLUSTER}spec: {{{keys}}}\n")
    found = json.loads(avactl("validate", "--format", "json").stdout)
    assert len(found) == 101
    assert found[-1]["message"] == "49,900 more problems in this spec"


def test_set_puts_no_credential_in_and_takes_one_out(tmp_path: Path, avactl: Run) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(JOB)
    for edit in (f"spec.image={TOKEN}", "spec.env.DB_PASSWORD=hunter2hunter2"):
        shown = avactl("set", "x.yaml", edit)
        assert shown.returncode == 1
        assert TOKEN not in shown.stderr
        assert "hunter2" not in shown.stderr
        assert file.read_text() == JOB
    file.write_text(f"{JOB}  env: {{TOK: {TOKEN}, A: b}}\n")
    assert avactl("set", "x.yaml", "spec.env.TOK-").returncode == 0
    assert file.read_text() == f"{JOB}  env: {{A: b}}\n"


def test_set_knows_keys_with_dots(tmp_path: Path, avactl: Run) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(JOB)
    assert avactl("set", "x.yaml", "metadata.labels['example.com/use']=x").returncode == 0
    assert "metadata: {name: train, team: vision, labels: {example.com/use: x}}\n" in file.read_text()
