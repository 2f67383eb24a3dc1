"""The table of scheduler_perf in docs/measured.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.scheduler_perf.comparison import Comparison
from tools.controlplane.build import KUBERNETES_VERSION
from tools.measured import PAGE, write_section

SECTION = "scheduler_perf"
NOT_RUN = "not run yet"
_COLUMNS = (
    "case",
    "workload",
    "nodes",
    "pods",
    "kube-scheduler",
    "pods/s",
    "p99",
    "CPU/pod",
    "outcome",
    "Kubernetes",
    "commit",
    "date",
    "machine",
)
_KUBE_SCHEDULER = "kube-scheduler"
_RATE, _OUTCOME = _COLUMNS.index(_KUBE_SCHEDULER), _COLUMNS.index("outcome")


def merge_table(page: str, cases: Sequence[str], comparisons: Iterable[Comparison], origin: str) -> str:
    """Return a table with a row for every case: of this run, as it is on the page, or not run yet."""
    section = page.partition(f"<!-- begin {SECTION} -->")[2].partition(f"<!-- end {SECTION} -->")[0]
    rows = {name: _row(name, *[""] * 7, NOT_RUN, *[""] * 4) for name in cases}
    rows |= {name: line for line in section.splitlines() if (name := line[2:].partition(" |")[0]) in rows}
    for comparison in comparisons:
        row = _row_of(comparison, origin)
        before = rows[comparison.case]
        # What was measured stays if a run that measures nothing has the same outcome.
        if comparison.measured or not _is_measured(before) or _cells(before)[_OUTCOME] != _cells(row)[_OUTCOME]:
            rows[comparison.case] = row
    return "\n".join([_row(*_COLUMNS), _row(*["---"] * len(_COLUMNS)), *rows.values()])


def write(cases: Sequence[str], comparisons: Sequence[Comparison], origin: str) -> None:
    """Write comparisons into docs/measured.md."""
    write_section(SECTION, merge_table(PAGE.read_text(encoding="utf-8"), cases, comparisons, origin))


def show(comparison: Comparison) -> str:
    """Return a comparison as one line, with ratios if it was measured."""
    if comparison.reason:
        return f"{comparison.case}: {comparison.verdict}"
    nodes, pods = comparison.size
    line = f"{comparison.case} ({comparison.workload}, {nodes} nodes, {pods} pods): {comparison.verdict}"
    ratios = (
        ("pods/s", _rate_ratio(comparison)),
        ("p99", _latency_ratio(comparison)),
        ("CPU/pod", _cpu_ratio(comparison)),
    )
    return line + "".join(f"; {label} {ratio}" for label, ratio in ratios if ratio)


def _row_of(comparison: Comparison, origin: str) -> str:
    if comparison.reason:
        cells = [""] * 7
    else:
        rate = comparison.outcomes[_KUBE_SCHEDULER].rate if comparison.measured else 0.0
        cells = [
            comparison.workload,
            *map(str, comparison.size),
            f"{rate:.{0 if rate >= 10 else 2}f} pods/s" if rate else "",
        ]
        cells += [_rate_ratio(comparison), _latency_ratio(comparison), _cpu_ratio(comparison)]
    return _row(comparison.case, *cells, comparison.verdict, KUBERNETES_VERSION, *origin.split(" | "))


def _cells(row: str) -> list[str]:
    return row[2:-2].split(" | ")


def _is_measured(row: str) -> bool:
    return bool(_cells(row)[_RATE])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _rate_ratio(comparison: Comparison) -> str:
    return _ratio(comparison, *(outcome.rate for outcome in comparison.outcomes.values()))


def _latency_ratio(comparison: Comparison) -> str:
    return _ratio(comparison, *(outcome.latency(0.99) for outcome in comparison.outcomes.values()))


def _cpu_ratio(comparison: Comparison) -> str:
    return _ratio(comparison, *(outcome.cpu_per_pod for outcome in comparison.outcomes.values()))


def _ratio(comparison: Comparison, kube_scheduler: float = 0.0, avactl: float = 0.0) -> str:
    """Return a ratio; empty if nothing was measured, or one of the schedulers did not bind all pods."""
    finished = comparison.measured and not any(outcome.pending for outcome in comparison.outcomes.values())
    return f"{avactl / kube_scheduler:.2f}" if finished and kube_scheduler > 0 else ""
