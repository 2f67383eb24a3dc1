"""What all tests share: the `--update` flag of golden files, and the fixtures of the control plane."""

from __future__ import annotations

import difflib
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = [
    "tests.cluster_fixtures",
    "tests.alluxio_fixtures",
    "tests.build_ahead",
    "tests.cli.running",
    "tests.cpu",
    "tests.skips",
    "tests.long_tests",
]

os.environ["AVACTL_DEBUG"] = "1"  # a defect shows its traceback
os.environ["AVACTL_SOURCE"] = "work-tree"  # in pipelines too: tests write files that they do not commit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a background job of a shell: the commands that tests interrupt would inherit it, and never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# By default, an example that takes over 200 ms fails: on a busy machine, any property does so some time.
hypothesis.settings.register_profile("avactl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("avactl")
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
"""True in the long forms of the tests."""

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files instead of comparing with them")


LONG_GROUPS = ("scheduler", "serving", "cache", "delivery", "reconcile", "alluxio", "jobs", "tests.kinds.test_tenancy")
"""Groups that take minutes, the longest first."""
BUILDERS = {"engine": "tools.pulumi"}
"""Groups whose tests need a long build, and the program that makes it: tests/build_ahead.py starts it."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share a fixture of their module or package: another worker would set it up once more.

    Long groups begin first and single tests last (with `--no-loadscope-reorder`), so that no worker ends alone.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group") and (name := _shared_fixture(item)):
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=_turn)


def _shared_fixture(item: pytest.Item) -> str:
    """Return the name of a test's package or module, if it uses a fixture of that scope; "" for none."""
    if not isinstance(item, pytest.Function):
        return ""
    definitions = [each for several in item._fixtureinfo.name2fixturedefs.values() for each in several]
    packages = [Path(each.baseid).name for each in definitions if each.scope == "package"]
    modules = [item.module.__name__ for each in definitions if each.scope == "module"]
    return next(iter([*packages, *modules]), "")


def _turn(item: pytest.Item) -> int:
    """Return when a test runs: groups by their length, others, those that wait for a build, then single tests."""
    if not (mark := item.get_closest_marker("xdist_group")):
        return len(LONG_GROUPS) + 2
    if mark.args[0] in BUILDERS:
        return len(LONG_GROUPS) + 1
    return LONG_GROUPS.index(mark.args[0]) if mark.args[0] in LONG_GROUPS else len(LONG_GROUPS)


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
