"""Forked processes of the command line have the log and the exit code of started ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import forked


def test_output_and_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = forked.start(["scheduler", "--config", "/nowhere/policy.json"], log=log)
    assert process.wait() == process.poll() == process.returncode == 2
    assert "no such file" in (tmp_path / "log").read_text()
    process.kill()  # it has ended: nothing happens


def test_scripts_run_the_command_with_their_streams_and_directory(tmp_path: Path) -> None:
    program = tmp_path / "avactl"
    with forked.executable(program):
        (tmp_path / "specs").mkdir()
        script = f"cd specs && {program} validate nothing 2>&1 || echo $?; {program} --version | cat"
        done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "nothing" in done.stdout
    assert "\n2\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("avactl ")
    assert done.stderr == ""
