"""Without what a real node needs, one line says what to do; tests are skipped with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.controlplane import UnavailableError
from tools.realnode import check

ROOT = Path(__file__).parents[2]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "runc", "iptables"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UnavailableError, match=r"run `apt-get install containerd .*iproute2 util-linux openssl gcc"):
        check()


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="Debian is needed"):
        check()


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="it needs root"):
        check()


def test_tests_are_skipped_with_one_line() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CI"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-q", "-m", "e2e", "tests/e2e"]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(lines) == 1, done.stdout
    assert lines[0].endswith("real node unavailable: it is made of Debian packages, so Debian is needed")
