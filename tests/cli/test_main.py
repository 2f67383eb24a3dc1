"""The command as a whole: help, completion, exit codes, colours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from avactl.cli.app import COMMANDS
from tests.cli.running import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BROKEN = "apiVersion: avactl.dev/v1\nkind: Teem\nmetadata: {name: a}\n"


def test_every_command_exists_and_has_help(avactl: Run) -> None:
    for name in COMMANDS:
        shown = avactl(name, "--help")
        assert shown.returncode == 0
        assert f"Usage: avactl {name}" in shown.stdout


def test_help_names_the_commands_and_exit_codes(avactl: Run) -> None:
    shown = avactl("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in COMMANDS)
    assert "Exit codes: 0 ok" in shown.stdout


def test_unknown_command_is_wrong_usage(avactl: Run) -> None:
    shown = avactl("validat")
    assert shown.returncode == 2
    assert "validat" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_completion_of_commands_and_kinds(avactl: Run) -> None:
    words = {"_AVACTL_COMPLETE": "complete_bash", "COMP_WORDS": "avactl va", "COMP_CWORD": "1"}
    assert avactl(**words).stdout.split() == ["validate"]
    words = {"_AVACTL_COMPLETE": "complete_bash", "COMP_WORDS": "avactl explain Se", "COMP_CWORD": "2"}
    assert avactl(**words).stdout.split() == ["ServingDeployment"]


def test_colours_only_on_terminals_and_without_no_color(tmp_path: Path, avactl: Run) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN)
    assert "\x1b[" not in avactl("validate").stdout
    command = [sys.executable, "-m", "avactl.cli.main", "validate", "--no-cache"]
    assert "\x1b[" in _on_terminal(command, tmp_path, {})
    assert "\x1b[" not in _on_terminal(command, tmp_path, {"NO_COLOR": "1"})


def _on_terminal(command: list[str], directory: Path, env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm", **env}
    process = subprocess.Popen(command, cwd=directory, stdout=theirs, stderr=theirs, env=clean)
    os.close(theirs)
    out = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        out += part
    process.wait()
    os.close(ours)
    return out.decode()


def test_reader_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m avactl.cli.main explain TrainingJob | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == "TrainingJob"
