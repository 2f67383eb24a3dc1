"""Tests that `make test` leaves to CI: `long_tests.txt` lists those that take most CPU time, by measurement.

They hold what quicker tests hold in parts or in memory. `.ci/run` and `make test ALL=1` run them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.skips import find_entry

LIST = Path(__file__).with_name("long_tests.txt")


def read_list() -> list[str]:
    """Return the listed tests: node IDs, which may end before the parameters or before `::`."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"long: {LIST.name} leaves the test to CI (set by the list)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests."""
    listed = read_list()
    for item in items:
        if find_entry(item.nodeid, listed) is not None:
            item.add_marker("long")
