"""`docs/measured.md`: the last run of each long target, and the sections that comparisons with others write.

    python -m tools.measured TARGET COMMAND…

runs a command, shows its output, and writes the row of a target: the last line of pytest, or the lines of bars that
benchmarks print. The exit code is that of the command.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measured.md"
RUNS = "runs"
"""The section with one row for each target."""
_SUMMARY = re.compile(r"=+ (\d+ .+ in [\d.]+s.*?) =+")
"""The last line of pytest. With `-q` it has no frame."""
_COLOR = re.compile(r"\x1b\[[\d;]*m")


def run_origin() -> str:
    """Return commit, date and machine of a run that ends now, as cells of a table."""
    return f"{_commit()} | {datetime.now(UTC):%Y-%m-%d} | {_machine()}"


def replace_section(page: str, name: str, content: str) -> str:
    """Return a page with other content between the markers of a section. Raises ValueError if there is none."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    head, begun, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{PAGE.name} has no section {name}: add `{begin.strip()}` and `{end}`")
    return f"{head}{begin}\n{content.strip()}\n\n{end}{tail}"


def write_section(name: str, content: str, page: Path = PAGE) -> None:
    """Replace the content of a section of the page."""
    page.write_text(replace_section(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")


def write_run(target: str, figures: str, origin: str, page: Path = PAGE) -> None:
    """Write the row of a target, in place of the one of its last run."""
    text = page.read_text(encoding="utf-8")
    section = text.partition(f"<!-- begin {RUNS} -->")[2].partition(f"<!-- end {RUNS} -->")[0]
    head, *rows = [line for line in section.splitlines() if line.startswith("|")]
    separator, *rows = rows
    first = f"| `{target}` |"
    kept = [row for row in rows if not row.startswith(first)]
    cell = figures.replace("|", "\\|")
    write_section(RUNS, "\n".join([head, separator, *sorted([*kept, f"{first} {origin} | {cell} |"])]), page)


def summarize(lines: Sequence[str], status: int) -> str:
    """Return the figures in the output of a command: its bars, or the summary of pytest."""
    plain = [_COLOR.sub("", line).strip() for line in lines]
    figures = [line.removeprefix("bar ") for line in plain if line.startswith("bar ")]
    figures = figures or [match[1] for line in plain if (match := _SUMMARY.fullmatch(line))][-1:]
    if status:
        figures.append(f"exit code {status}")
    return "; ".join(figures) or "ended"


def measure(target: str, command: Sequence[str], page: Path = PAGE) -> int:
    """Run a command, show its output, and write the row of a target. Return the exit code."""
    origin = run_origin()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    write_run(target, f"{summarize(lines, process.returncode)}; {used:.0f} CPU s", origin, page)
    return process.returncode


def _commit() -> str:
    """Return the commit of the work tree, and whether it differs (this page does not count)."""
    commands = (
        ["rev-parse", "--short=12", "HEAD"],
        ["status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}"],
    )
    commit, changes = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for words in commands
    )
    return f"{commit}, changed" if changes else commit


def _machine() -> str:
    """Return processor, cores and memory."""
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} × {models[0] if models else platform.machine()}, {memory:.0f} GiB"


if __name__ == "__main__":
    sys.exit(measure(sys.argv[1], sys.argv[2:]))
