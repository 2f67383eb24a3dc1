"""What all tests share: the `--update` flag of golden files, and the fixtures of the control plane."""

from __future__ import annotations

import difflib
import gc
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.cluster_fixtures", "tests.alluxio_fixtures", "tests.cli.running", "tests.skips"]

os.environ["AVACTL_DEBUG"] = "1"  # a defect shows its traceback
os.environ["AVACTL_SOURCE"] = "work-tree"  # in pipelines too: tests write files that they do not commit

# By default, an example that takes over 200 ms fails: on a busy machine, any property does so some time.
hypothesis.settings.register_profile("avactl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("avactl")
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
"""True in the long forms of the tests."""

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files instead of comparing with them")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share a fixture of their module: another worker would set it up once more."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group") is not None:
            continue
        found = item._fixtureinfo.name2fixturedefs.values()
        if any(each.scope == "module" for definitions in found for each in definitions):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: nearly all that they make stays, and is walked each time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the collector look at what tests make: it would walk all modules and tests again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)`: the file at `path` holds exactly `text`; `--update` writes it."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="", n=2)
            pytest.fail("\n".join([*lines, "", "pytest --update writes it"]), pytrace=False)

    return compare
