"""`pytest --cpu`: the CPU seconds of each test file, with those of all processes that its tests start.

A file that starts what later files share (a control plane) has the CPU of its start, and each test the CPU that shared
processes use while it runs. Waiting is the wall time without CPU.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

MAX_ROWS = 400
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USED = "avactl_used_seconds"
"""The attribute of a report; pytest-xdist sends it from its workers."""


class _CpuMeter:
    """CPU seconds of this process and of its descendants, also of those that have ended or lost their parent."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str]] = set()
        self._last = (self._measure_cpu(), time.monotonic())

    def lap(self) -> tuple[float, float]:
        """Return the CPU and wall seconds since the last call."""
        cpu, wall = self._last
        self._last = (self._measure_cpu(), time.monotonic())
        return max(0.0, self._last[0] - cpu), self._last[1] - wall

    def _measure_cpu(self) -> float:
        processes = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    fields = Path(entry.path, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                except OSError:  # it has ended
                    continue
                # Its own time and that of its children which it has waited for.
                ticks = sum(map(int, fields[11:15]))
                processes[int(entry.name)] = (int(fields[1]), fields[19], ticks)
        children = defaultdict(list)
        for process, (parent, _, _) in processes.items():
            children[parent].append(process)
        # A daemon whose parent has ended is known from before.
        reached, left = set(), [os.getpid(), *(p for p, s in self._known if p in processes and processes[p][1] == s)]
        while left:
            process = left.pop()
            if process not in reached:
                reached.add(process)
                left += children[process]
        self._known = {(process, processes[process][1]) for process in reached}
        return sum(processes[process][2] for process in reached) / _TICKS_PER_S


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu", action="store_true", help="write tables of CPU seconds and of waiting, by file and test")


def pytest_configure(config: pytest.Config) -> None:
    """Measure, if the option says so."""
    if config.getoption("--cpu"):
        config.pluginmanager.register(_CpuPlugin())


class _CpuPlugin:
    """Measure each phase of a test, and write a table at the end."""

    def __init__(self) -> None:
        self._meter = _CpuMeter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Measure a phase."""
        report = yield
        setattr(report, _USED, self._meter.lap())
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the files and the tests that use most CPU, and those that wait longest."""
        used: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for report in (report for reports in terminalreporter.stats.values() for report in reports):
            cpu, wall = getattr(report, _USED, (0.0, 0.0))
            if wall:
                # With `--dist loadgroup`, pytest-xdist appends `@GROUP`; a parameter may have an `@`, too.
                for name in (report.nodeid.split("::")[0], re.sub(r"@[^\]]*$", "", report.nodeid), "total"):
                    used[name][0] += cpu
                    used[name][1] += max(0.0, wall - cpu)
        files = {name: seconds for name, seconds in used.items() if "::" not in name}
        for title, rows, column in (("CPU by file", files, 0), ("CPU by test", used, 0), ("waiting by test", used, 1)):
            rows = rows if rows is files else {name: seconds for name, seconds in used.items() if "::" in name}
            terminalreporter.section(f"{title}: CPU seconds, waiting")
            for name, (cpu, waiting) in sorted(rows.items(), key=lambda row: -row[1][column])[:MAX_ROWS]:
                terminalreporter.write_line(f"{cpu:8.1f} {waiting:8.1f}  {name}")
