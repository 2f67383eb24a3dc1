"""Skips: a test that this machine lacks something for is skipped, and in CI it fails.

Whatever a test or its fixtures raise as UnavailableError is such a lack; so is a program of `pytest.mark.needs`. CI
skips the tests that `skipped_in_ci.txt` lists, and no others; one that is listed and runs fails, too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from tools.controlplane import UnavailableError, is_required
from tools.programs import require_programs

LIST = Path(__file__).with_name("skipped_in_ci.txt")
_LISTED = pytest.StashKey[dict[str, str]]()


def read_list() -> dict[str, str]:
    """Return the reason of each listed test, by its node ID, which may end before the parameters or before `::`."""
    listed = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            node_id, reason = line.split(maxsplit=1)
            listed[node_id] = reason
    return listed


def pytest_configure(config: pytest.Config) -> None:
    """Read the list."""
    config.stash[_LISTED] = read_list()


def find_entry(node_id: str, listed: Iterable[str]) -> str | None:
    """Return the entry of a list that names a test."""
    # With `--dist loadgroup`, pytest-xdist appends `@GROUP`.
    entries = (entry for entry in listed if f"{node_id}@".startswith(tuple(entry + end for end in "[:@")))
    return next(entries, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for the programs of `pytest.mark.needs`."""
    for mark in item.iter_markers("needs"):
        require_programs(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # it sees what other plugins have made of the report
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a lack into a skip, and in CI a skip into a failure."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, UnavailableError):
        # One place for all: the summary then has one line for each reason.
        report.outcome = "skipped"
        report.longrepr = (__file__, 1, f"Skipped: {call.excinfo.value}")
    if is_required():
        listed = item.config.stash[_LISTED]
        entry = find_entry(item.nodeid, listed)
        if entry is None:
            _fail_if_skipped(report)
        elif report.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"this test runs here: take {entry!r} out of {LIST.name}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for modules that are skipped as a whole."""
    report = yield
    if is_required():
        _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        assert isinstance(report.longrepr, tuple)
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2].removeprefix('Skipped: ')} (skipped outside of CI)"
