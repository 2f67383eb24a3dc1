"""Kubernetes' own end-to-end tests of scheduling and DRA on two real nodes, whose pods avactl schedules.

    python -m benchmarks.kubernetes_e2e [WORDS…] [--open] [--jobs 4] [--list] [--no-write]

runs the tests whose names contain all of WORDS, or all; with --open, only those whose row says that they were not run
yet, or a defect. A mutating admission policy gives pods of the default scheduler to avactl; kube-scheduler does not
run. A test that fails is run again with kube-scheduler: a failure of both is one of the nodes. The table in
docs/measured.md gets the outcomes; tests that are not run keep their row. The exit code is 1 if an outcome is a defect.
It needs root, as `make e2e` does; all tests take an hour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.kubernetes_e2e import outcomes
from benchmarks.kubernetes_e2e.nodes import default_scheduler, test_nodes
from benchmarks.kubernetes_e2e.suite import Result, Suite, SuiteTest
from tools.controlplane.folder import OwnedFolder
from tools.measured import PAGE, run_origin


def main() -> int:
    """Run the tests; 1 if an outcome is a defect."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes_e2e", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("words", nargs="*", metavar="WORDS", help="run tests with these words in their names")
    parser.add_argument("--open", action="store_true", help="only tests that the table has no outcome of, or a defect")
    parser.add_argument("--jobs", type=int, default=4, help="tests at the same time (default: 4)")
    parser.add_argument("--list", action="store_true", help="print the names of the tests, and run none")
    parser.add_argument("--no-write", action="store_true", help="leave docs/measured.md as it is")
    options = parser.parse_args()
    origin = "" if options.list or options.no_write else run_origin()
    with ExitStack() as stack:
        folder = OwnedFolder()
        stack.callback(folder.remove)
        suite = Suite(folder.path)
        tests = suite.tests()
        chosen = [test for test in tests if all(words in test.name for words in options.words)]
        if options.open:
            chosen = outcomes.find_open(PAGE.read_text(encoding="utf-8"), chosen)
            if not chosen:
                print("all of these tests have an outcome")
                return 0
        if not chosen:
            parser.error(f"no test has {' '.join(options.words)} in its name; --list prints all")
        if options.list:
            print("\n".join(sorted(test.name for test in chosen)))
            return 0
        results: dict[str, str] = {}
        for done in run(suite, chosen, options.jobs):
            for name, text in done.items():
                print(f"{name}: {text}", flush=True)
            results |= done
            if origin:  # after each batch: a run takes an hour
                outcomes.write(tests, results, origin)
    return int(outcomes.has_defect(results.values()))


def run(suite: Suite, tests: Sequence[SuiteTest], jobs: int) -> Iterator[dict[str, str]]:
    """Run tests with avactl, and those that fail with kube-scheduler; yield outcomes by name."""
    known = {test.name: text for test in tests if (text := outcomes.outcome_without_run(test))}
    yield known
    runnable = {test.name: test for test in tests if test.name not in known}
    if not runnable:
        return
    failed: dict[str, Result] = {}
    with test_nodes(suite.images()) as node:
        with default_scheduler(node, "avactl"):
            for results in suite.run(node.kubeconfig, list(runnable.values()), jobs):
                for name, result in results.items():
                    if outcomes.needs_reference(runnable[name], result):
                        failed[name] = result
                yield {name: outcomes.outcome(runnable[name], result) for name, result in results.items()}
        if failed:
            with default_scheduler(node, "kube-scheduler"):
                for results in suite.run(node.kubeconfig, [runnable[name] for name in failed], jobs):
                    yield {
                        name: outcomes.outcome(runnable[name], failed[name], reference)
                        for name, reference in results.items()
                    }


if __name__ == "__main__":
    sys.exit(main())
