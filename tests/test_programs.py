"""The table of the programs that tests need: what is missing is named, or installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.controlplane import UnavailableError
from tools.programs import find_program, require_programs

IS_DEBIAN_ROOT = os.geteuid() == 0 and "ID=debian" in Path("/etc/os-release").read_text().splitlines()


def test_any_alternative_of_a_program_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("chromium") is None
    (tmp_path / "google-chrome").touch(mode=0o755)
    assert find_program("chromium") == str(tmp_path / "google-chrome")


def test_all_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match=r"^no go on PATH$"):
        require_programs("go")
    with pytest.raises(UnavailableError, match=r"^pods unavailable: no go, runc on PATH: run `apt-get install runc`$"):
        require_programs("go", "runc", purpose="pods")


def install(folder: Path, table: str) -> tuple[list[str], str]:
    """Run the installer with another table; return the calls of `apt-get`, and what it said."""
    for directory in (".ci", "tools", "bin"):
        (folder / directory).mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / "install", folder / ".ci")
    (folder / "tools" / "programs.txt").write_text(f"# a comment\n{table}")
    calls = folder / "calls"
    calls.write_text("")
    apt = folder / "bin" / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n')
    apt.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([folder / ".ci" / "install"], env=environment, capture_output=True, text=True, check=True)
    return [call for call in calls.read_text().splitlines() if not call.startswith("update")], done.stderr


def test_what_is_there_is_not_installed(tmp_path: Path) -> None:
    table = f"sh dash\nno-such-program|bash bash\n{tmp_path} folder\nlibc.so.6 libc6\n"
    assert install(tmp_path, table) == ([], "")


def test_what_is_missing_is_installed_or_named(tmp_path: Path) -> None:
    missing = "no-such-program one\nno-such-program|nor-this two\n/no/such/file three\nlibnone.so.1 four\n"
    calls, said = install(tmp_path, f"sh dash\n{missing}nothing-has-it -\n")
    if IS_DEBIAN_ROOT:
        (call,) = calls
        assert call.endswith(" --no-install-recommends one two three four")
        assert said.startswith("installing one two three four …\nnot on this machine: nothing-has-it; tests that need")
    else:
        assert calls == []
        assert said.startswith("not on this machine: nothing-has-it one two three four; tests that need")
