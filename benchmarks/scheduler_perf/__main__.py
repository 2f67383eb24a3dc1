"""Kubernetes' own scheduler benchmark, scheduler_perf: each case with kube-scheduler and with avactl.

    python -m benchmarks.scheduler_perf [CASE…] [--short] [--nodes 500] [--no-write]

A case is run in its smallest workload of 500 to 1,000 nodes, or the nearest one (larger ones are scaled down), with
one scheduler after the other on the same control plane. With --short, both run at the same time in the smallest
workload, and only the outcomes count. The table in docs/measured.md gets the results, those of --short with --write;
cases that are not run keep their row. The exit code is 1 if an outcome is a defect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from benchmarks.clusters import SCHEDULERS
from benchmarks.scheduler_perf import report
from benchmarks.scheduler_perf.comparison import (
    BY_DESIGN,
    NOT_APPLICABLE,
    Benchmark,
    Comparison,
    ready_scheduler,
    scheduler_perf_plane,
)
from benchmarks.scheduler_perf.configurations import (
    Case,
    Size,
    Workload,
    choose_smallest,
    choose_workload,
    conflicting_gates,
    find_folder,
    read_cases,
)
from tools.measured import run_origin


def main() -> int:
    """Run the named cases, or all; 1 if an outcome is a defect."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler_perf", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases to run (default: all)")
    parser.add_argument("--short", action="store_true", help="the smallest workloads: outcomes only, nothing measured")
    parser.add_argument("--nodes", type=int, default=500, help="nodes at least (default: 500)")
    written = "write the table in docs/measured.md (default: unless --short)"
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, help=written)
    options = parser.parse_args()
    writes = not options.short if options.write is None else options.write
    known = {case.name: case for case in read_cases(find_folder())}
    if unknown := sorted(set(options.cases) - set(known)):
        parser.error(f"no such case: {', '.join(unknown)}; known: {', '.join(known)}")
    cases = [known[name] for name in options.cases or known]
    origin = run_origin() if writes else ""
    comparisons = []
    for comparison in compare_short(cases) if options.short else compare(cases, options.nodes):
        print(report.show(comparison), flush=True)
        comparisons.append(comparison)
        if writes:  # after each case: a run takes hours
            report.write(list(known), comparisons, origin)
    return int(any(comparison.verdict.startswith("defect") for comparison in comparisons))


def compare_short(cases: Sequence[Case]) -> Iterator[Comparison]:
    """Compare cases in their smallest workloads on one control plane, on which both schedulers run."""
    with ExitStack() as stack:
        plane = stack.enter_context(scheduler_perf_plane())
        for name in SCHEDULERS:
            stack.enter_context(ready_scheduler(plane, name))
        benchmark = Benchmark(plane, scheduler_per_run=False)
        gates = benchmark.feature_gates()
        for case in cases:
            workloads, inapplicable = find_workloads(case, gates)
            if inapplicable:
                yield inapplicable
                continue
            found = benchmark.compare(case, choose_smallest(case, workloads))
            if found.outcomes["kube-scheduler"].pending and case.name not in BY_DESIGN:
                # The end of a victim can escape kube-scheduler until it looks at all pods again, after five minutes.
                found = benchmark.compare(case, choose_smallest(case, workloads))
            yield found


def compare(cases: Sequence[Case], nodes: int) -> Iterator[Comparison]:
    """Compare cases of some number of nodes, each on a control plane of its own."""
    for case in cases:
        with scheduler_perf_plane() as plane:
            benchmark = Benchmark(plane)
            workloads, inapplicable = find_workloads(case, benchmark.feature_gates())
            yield inapplicable or benchmark.compare(case, choose_workload(case, workloads, nodes))


def find_workloads(case: Case, gates: Mapping[str, bool]) -> tuple[list[Workload], Comparison | None]:
    """Return the workloads that a control plane with these feature gates can run; without any, say why."""
    reason = NOT_APPLICABLE.get(case.name, "")
    workloads = [workload for workload in case.workloads if not conflicting_gates(case, workload, gates)]
    if not workloads:
        needed = sorted({gate for workload in case.workloads for gate in conflicting_gates(case, workload, gates)})
        reason = f"needs other feature gates than Kubernetes has by default: {', '.join(needed)}"
    return workloads, Comparison(case.name, "", Size(0, 0), {}, reason) if reason else None


if __name__ == "__main__":
    sys.exit(main())
