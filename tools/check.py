"""`make check [P=NAME]`: lint, types and tests of what changed, in under ten CPU seconds.

Without a name, what git says has changed is checked: the types of these files, and the tests that import them or have
the name of their package. `P=scheduler` runs `tests/scheduler`, `P=quota` the files `test_quota*.py`. Tests that need a
control plane are left out, and so are the slowest ones if not all fit into the time: the last line counts them. It is
no substitute for `make test`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_COLLECT_S, MAX_TESTS_S = 4.0, 7.0
"""CPU seconds of the tests' process until no more files are imported, and until no more tests begin."""
ASSUMED_S = 0.01
"""CPU seconds of a test that no run has measured yet; if it takes more, the last ones are left out."""
SLOW_S = 0.5
"""CPU seconds from which a test runs after the others, if there is time."""
QUICK = "not controlplane and not engine and not slow and not e2e and not frameworks"
_RECORD = "check/seconds"


def changed_files() -> list[Path]:
    """Return the Python files that differ from HEAD, and new ones."""
    names: set[str] = set()
    for command in (["diff", "--name-only", "--diff-filter=d", "HEAD"], ["ls-files", "--others", "--exclude-standard"]):
        out = subprocess.run(["git", *command, "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names.update(out.splitlines())
    return [ROOT / name for name in sorted(names)]


def tests_named(name: str) -> list[Path]:
    """Return the folder of tests with this name, or the files."""
    folder = ROOT / "tests" / name
    return sorted(folder.rglob("test_*.py") if folder.is_dir() else (ROOT / "tests").rglob(f"test_{name}*.py"))


def tests_of(files: Sequence[Path]) -> list[Path]:
    """Return the test files for changed files: those that changed, import them, or have a name of their packages."""
    chosen = [path for path in files if path.name.startswith("test_")]
    modules = [_module(path) for path in files if path not in chosen]
    if modules:
        imported = re.compile("|".join(rf"\b(?:{_import_pattern(module)})\b" for module in modules))
        tests = sorted((ROOT / "tests").rglob("test_*.py"))
        chosen += [path for path in tests if imported.search(path.read_text(encoding="utf-8"))]
    for module in modules:
        chosen += next(filter(None, map(tests_named, reversed(module.split(".")[1:]))), [])
    return list(dict.fromkeys(chosen))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in ("components", "worker", "client"):  # directories of further distributions
        parts = parts[1:]
    return ".".join(parts).removesuffix(".__init__")


def _import_pattern(module: str) -> str:
    package, _, name = module.rpartition(".")
    return "|".join(
        (
            rf"from {re.escape(module)} import",
            rf"import (?:[\w.]+(?: as \w+)?, )*{re.escape(module)}",
            rf"from {re.escape(package)} import (?:\([^)]*|[^\n(]*)\b{name}",
        )
    )


def typed_files(files: Sequence[Path]) -> list[Path]:
    """Return the files whose types mypy checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    packages, excluded = set(settings["packages"]), re.compile("|".join(settings["exclude"]))
    names = {path: path.relative_to(ROOT) for path in files}
    return [
        path
        for path, name in names.items()
        if not packages.isdisjoint(name.parts[:2]) and not excluded.search(name.as_posix())
    ]


def main() -> int:
    """Run the checks; return 1 if one fails."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    changed = changed_files()
    tests = tests_named(name) if name else tests_of(changed)
    if name and not tests:
        sys.exit(f"make check: there are no tests/{name} and no test_{name}*.py")
    tools = Path(sys.executable).parent
    commands: list[list[str | Path]] = [
        [tools / "ruff", "check", "--quiet", "."],
        [tools / "ruff", "format", "--check", "--quiet", "."],
        [tools / "lint-imports"],
    ]
    if typed := typed_files(changed):
        commands.append([tools / "mypy", *typed])
    if tests:
        options = ["-n", "0", "-q", "-p", "tools.check", "--in-time", "-m", QUICK]
        commands.append([sys.executable, "-m", "pytest", *options, *tests])
    failed = [command for command in commands if not _run(command)]
    if not tests:
        print("no tests: nothing has changed that a test names; P=NAME chooses some")
    print(f"{_cpu_seconds():.1f} CPU s in all")
    return 1 if failed else 0


def _run(command: Sequence[str | Path]) -> bool:
    before, tests = _cpu_seconds(), "pytest" in command
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=not tests, text=True)
    passed = done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    name = "pytest" if tests else Path(command[0]).name
    if not passed and not tests:
        print(done.stdout + done.stderr, end="")
    print(f"{'ok' if passed else 'FAILED'}: {name}, {_cpu_seconds() - before:.1f} CPU s", flush=True)
    return passed


def _cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


# The rest is a plugin of pytest: `--in-time` ends the tests after MAX_TESTS_S.


class _LeftOut(pytest.File):
    """A file of tests that is not imported, for lack of time."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield no tests."""
        yield from ()


class InTime:
    """Runs the tests that fit into the time, by what they took before."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = config.cache
        recorded = self._cache.get(_RECORD, {}) if self._cache else {}
        self._seconds: dict[str, float] = recorded
        self._files = self._tests = 0
        self._begin = 0.0

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.File | None:
        """Import no more files than there is time for."""
        if _cpu_seconds() < MAX_COLLECT_S:
            return None
        self._files += 1
        return _LeftOut.from_parent(parent, path=module_path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what does not fit, the slowest tests first."""
        left = MAX_TESTS_S - _cpu_seconds()
        cost = {item: self._seconds.get(item.nodeid, ASSUMED_S) for item in items}
        chosen = set()
        for item in sorted(items, key=lambda item: cost[item] > SLOW_S):
            left -= cost[item]
            if left >= 0:
                chosen.add(item)
        self._leave_out(config, [item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Begin no test after the end of the time."""
        if _cpu_seconds() < MAX_TESTS_S:
            return None
        self._tests += 1
        return True

    def pytest_runtest_logstart(self) -> None:
        """Note when a test begins."""
        self._begin = _cpu_seconds()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note what a test took."""
        self._seconds[nodeid] = round(_cpu_seconds() - self._begin, 3)

    def _leave_out(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        self._tests += len(items)
        config.hook.pytest_deselected(items=items)

    def pytest_sessionfinish(self) -> None:
        """Keep the times for the next run."""
        if self._cache:
            self._cache.set(_RECORD, self._seconds)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was left out."""
        if self._files or self._tests:
            terminalreporter.write_line(f"left out for time: {self._tests} tests, and {self._files} files with tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--in-time`."""
    parser.addoption("--in-time", action="store_true", help="run the tests that fit into some CPU seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin's hooks."""
    if config.getoption("--in-time"):
        hypothesis.settings.register_profile("check", hypothesis.settings.default, max_examples=10)
        hypothesis.settings.load_profile("check")
        config.pluginmanager.register(InTime(config))


if __name__ == "__main__":
    sys.exit(main())
