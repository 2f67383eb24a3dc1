"""Skips in CI are failures, but for those of the list, which names tests that exist and do not run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import skips
from tests.conftest import ROOT
from tests.skips import find_entry, read_list

pytest_plugins = ("pytester",)
Run = Callable[..., pytest.RunResult]
MODULE = """
import pytest
from tools.controlplane import UnavailableError

@pytest.fixture
def cluster():
    raise UnavailableError("no cluster")

def test_fixture(cluster):
    pass

def test_body():
    raise UnavailableError("no cluster")

@pytest.mark.needs("rclone")
def test_program():
    pass

@pytest.mark.skipif(True, reason="no kernel")
def test_condition():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_skip(number):
    pytest.skip(f"no number {number}")

@pytest.mark.xfail
def test_xfail():
    assert False

def test_passes():
    pass
"""
REASONS = {
    "test_fixture": "no cluster",
    "test_body": "no cluster",
    "test_program": "no rclone on PATH: run `apt-get install rclone`",
    "test_condition": "no kernel",
    "test_skip[1]": "no number 1",
    "test_skip[2]": "no number 2",
}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Tests of a module of which all but two lack something, with the list `listed`."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(skips, "LIST", pytester.path / "listed")
    pytester.makepyfile(test_it=MODULE)

    def run_tests(*options: str, listed: str = "") -> pytest.RunResult:
        (pytester.path / "listed").write_text(f"# test and reason\n{listed}")
        return pytester.runpytest_inprocess("-p", "tests.skips", *options)

    return run_tests


def test_outside_of_ci_tests_are_skipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    result = run("-rs")
    result.assert_outcomes(skipped=6, xfailed=1, passed=1)
    lines = [line for line in result.outlines if line.endswith(": no cluster")]
    assert len(lines) == 1
    assert lines[0].startswith("SKIPPED [2] ")


def test_in_ci_they_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run()
    assert result.parseoutcomes() == {"passed": 1, "xfailed": 1, "failed": 3, "errors": 3}
    for reason in REASONS.values():
        assert f"{reason} (skipped outside of CI)" in result.outlines


def test_in_ci_a_module_fails(run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(test_it="import pytest\npytest.importorskip('no_such_module')\n")
    result = run()
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines("could not import 'no_such_module'*(skipped outside of CI)")


def test_ci_skips_what_is_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    listed = "".join(f"test_it.py::{name} why not\n" for name in REASONS)
    run(listed=listed).assert_outcomes(skipped=6, xfailed=1, passed=1)


@pytest.mark.parametrize("entry", ["test_it.py::test_skip", "test_it.py"])
def test_an_entry_may_name_several_tests(run: Run, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    monkeypatch.setenv("CI", "true")
    run("-k", "test_skip", listed=f"{entry} why not\n").assert_outcomes(skipped=2)


def test_a_listed_test_that_runs_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run("-k", "test_passes", listed="test_it.py::test_passes why not\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("this test runs here: take 'test_it.py::test_passes' out of listed")


def test_groups_of_workers_are_no_part_of_a_name() -> None:
    listed = ["a.py::test_on"]
    entries = [
        find_entry(f"a.py::{name}", listed) for name in ("test_on@group", "test_on[a@b]@group", "test_only@group")
    ]
    assert entries == ["a.py::test_on", "a.py::test_on", None]


def test_entries_name_tests() -> None:
    assert all(reason for reason in read_list().values())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-q", "--collect-only", *read_list()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not read_list(), done.stdout + done.stderr
