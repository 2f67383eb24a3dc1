"""Tests with one `xdist_group` run in one process: their clusters are started once, and in the order of the file."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)


def test_groups_hold(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest, time

        pytestmark = pytest.mark.xdist_group("one")

        @pytest.mark.parametrize("number", range(6))
        def test_here(number):
            time.sleep(0.1)
            with open("workers", "a") as file:
                print(os.environ["PYTEST_XDIST_WORKER"], file=file)
        """
    )
    pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup").assert_outcomes(passed=6)
    assert len(set((pytester.path / "workers").read_text().split())) == 1
