"""Run commands and measure time and memory; print bar lines."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

console = Console()


class Run(NamedTuple):
    """One run of a command."""

    seconds: float
    """Wall time from start to end of the process."""
    memory: int
    """Peak resident size in bytes; at least that of the measuring process, which should be small."""


class CommandError(Exception):
    """A measured command failed."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command in a fresh process and discard its output. Raises CommandError."""
    nowhere = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    began = time.perf_counter()
    child = os.posix_spawnp(command[0], list(command), {**os.environ, **(environment or {})}, file_actions=[nowhere])
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - began
    if status:
        raise CommandError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return Run(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def fastest(
    command: Sequence[str] | Callable[[int], Sequence[str]],
    repeats: int,
    environment: Callable[[int], Mapping[str, str]] | None = None,
    before: Callable[[int], None] | None = None,
) -> Run:
    """Return the fastest of several runs, because slower ones measure other load on the machine."""
    runs = []
    for index in range(repeats):
        if before is not None:
            before(index)
        words = command(index) if callable(command) else command
        runs.append(run(words, environment(index) if environment else None))
    return best(runs)


def folder_for_files(asked: str | None = None) -> str | None:
    """Return a folder for writing many files; None is the default for temporary files.

    ext4 does not reuse an inode for minutes after it was freed, and scans all of those first: if a benchmark has just
    deleted its files, creating one takes 20 times as long. Then a memory file system is the better place.
    """
    memory = "/dev/shm"
    if asked is not None or not Path(memory).is_dir():
        return asked
    count = 2000
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        began = time.perf_counter()
        for index in range(count):
            Path(folder, str(index)).write_bytes(b"x" * 1500)
        each = (time.perf_counter() - began) / count
    if each < 100e-6:
        return None
    console.print(f"{tempfile.gettempdir()} takes {each * 1e6:.0f} µs to make a file now: files go to {memory}")
    return memory


def peak_memory(process: int) -> int:
    """Return the peak resident size of a running process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a running process has used so far, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def best(runs: Sequence[Run]) -> Run:
    """Return the least time and the most memory of several runs."""
    return Run(min(each.seconds for each in runs), max(each.memory for each in runs))


class Bar(NamedTuple):
    """A figure with a bound. `value` is None if it could not be measured."""

    name: str
    value: float | None
    most: float
    unit: str = ""
    digits: int = 2


def bar(figure: Bar) -> bool:
    """Print a bar's line, `bar NAME: VALUE (at most MOST) ok`, or `… short`; return whether it is met."""
    name, value, most, unit, digits = figure
    kept = value is not None and value <= most
    shown = "not measured" if value is None else f"{value:.{digits}f}{unit}"
    print(f"bar {name}: {shown} (at most {most:.{digits}f}{unit}) {'ok' if kept else 'short'}", flush=True)
    return kept
