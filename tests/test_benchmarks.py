"""`python -m benchmarks`: its list has every benchmark with a line, and unknown names are refused."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.__main__ import benchmarks
from tests.test_layout import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_help_lists_the_benchmarks_and_runs_none() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "— benchmarks." not in done.stdout
    listed = done.stdout.partition("benchmarks:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(benchmarks())
    assert {"compile", "scheduler", "canary", "colocation"} <= set(benchmarks())
    assert {name for name, line in benchmarks().items() if len(line) < 20} == set()
    assert not {"generate", "measure", "random_storage", "cdk8s"} & set(benchmarks())


def test_unknown_names_are_refused() -> None:
    done = run("compile", "compiler")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown benchmark compiler; known: agreement, " in done.stderr
