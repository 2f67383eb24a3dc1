"""Without Go and KUBEBUILDER_ASSETS: a skip with one line on a developer's machine, a failure in CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.controlplane import is_required

ROOT = Path(__file__).parents[2]
REASON = "control plane unavailable: neither KUBEBUILDER_ASSETS is set nor Go on PATH"
TEST = """
def test_first(control_plane_binaries): pass
def test_second(control_plane_binaries): pass
"""


def run(*command: str, ci: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, with neither Go nor assets to be found."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "KUBEBUILDER_", "CI", "MAKE"))
    }
    environment = {**kept, "PATH": "/nowhere", **({} if ci is None else {"CI": ci})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def run_tests(folder: Path, ci: str | None) -> subprocess.CompletedProcess[str]:
    (folder / "test_plane.py").write_text(TEST)
    plugins = ("-p", "no:cacheprovider", "-p", "tests.cluster_fixtures", "-p", "tests.skips")
    options = (*plugins, "--rootdir", str(folder), "-ra", "-q")
    return run(sys.executable, "-m", "pytest", *options, str(folder), ci=ci)


def test_tests_are_skipped_with_one_line(tmp_path: Path) -> None:
    done = run_tests(tmp_path, None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    (line,) = re.findall(r"^SKIPPED.*$", done.stdout, re.MULTILINE)
    assert line.startswith("SKIPPED [2] ")
    assert line.endswith(REASON)


def test_tests_fail_in_ci(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 errors" in done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert f"{REASON} (skipped outside of CI)" in done.stdout


@pytest.mark.parametrize(
    ("ci", "status", "said"),
    [
        (None, 0, f"{REASON}; tests that need it are skipped\n"),
        ("", 0, f"{REASON}; tests that need it are skipped\n"),
        ("true", 2, f"error: {REASON}\n"),
    ],
)
def test_make_stops_in_ci_only(ci: str | None, status: int, said: str) -> None:
    make = shutil.which("make")
    assert make is not None
    # The environment of this test stands in for .venv, which is taken as it is.
    options = ("-o", ".venv/.ready", "controlplane", f"BIN={Path(sys.executable).parent}")
    done = run(make, *options, ci=ci)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr.startswith(said)
    assert done.stdout == ""


@pytest.mark.parametrize(("value", "required"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_ci_may_be_said_in_several_ways(value: str, required: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)
    assert is_required() is required


def test_a_build_that_was_asked_for_fails_anywhere() -> None:
    done = run(sys.executable, "-m", "tools.controlplane", "build", ci=None)
    assert (done.returncode, done.stderr) == (1, f"error: {REASON}\n")
