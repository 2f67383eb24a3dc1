"""Forked processes of the command line have the log and the exit code of started ones."""

from __future__ import annotations

from pathlib import Path

from tests import forked


def test_output_and_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = forked.start(["scheduler", "--config", "/nowhere/policy.json"], log=log)
    assert process.wait() == process.poll() == process.returncode == 2
    assert "no such file" in (tmp_path / "log").read_text()
    process.kill()  # it has ended: nothing happens
