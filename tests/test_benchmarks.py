"""`python -m benchmarks`: its list has every benchmark with a line, unknown names are refused, and each one runs.

No figure is checked: these are the smallest sizes. They show that what a benchmark uses is still there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import compile as compile_benchmark
from benchmarks import measure
from benchmarks.__main__ import HERE, benchmarks
from tests import forked
from tests.test_layout import ROOT

SMALLEST = {
    "datasets": "--lines 50 --files 20",
    "gangs": "--sets 40 --large 50",
    "importing": "--copies 1 --repeats 1",
    "links": "--jobs 50 --nodes 4",
    "processing": "--images 60 --repeats 1",
    "plan": "--jobs 4 --machines 100 --repeats 1",
    "ps": "--clients 2 --ids 50 --dim 4 --rounds 3 --repeats 1",
}
"""Options for a run of at most some CPU seconds."""
ELSEWHERE = {
    "agreement": "tests/scheduler/test_agreement.py runs 100 sets",
    "pod_groups": "tests/scheduler/test_pod_groups_agreement.py runs 50 sets",
    "balancing": "tests/client/test_benchmark.py runs its short form",
    "cache": "an Alluxio cluster and FUSE mounts for each measurement: `make bench`",
    "canary": "tests/serving/test_traffic.py runs `--short` in `make soak`",
    "checkpoint": "PyTorch: `make bench`",
    "colocation": "machines and a day of its own: `make bench`",
    "compile": "test_one_spec_is_edited_and_compiled_again runs a part, the rest starts 30 processes: `make bench`",
    "elastic": "real masters and load: `make bench`; tests/elastic has the short forms of its scenarios",
    "elastic_headline": "tests/elastic/test_headline.py runs its short form",
    "elastic_ssp": "steps that sleep for half a minute: `make bench`; tests/elastic/test_staleness.py has its bound",
    "environments": "plans of all the machines of the generated repository, 6 CPU seconds each: `make bench`",
    "hostile": "tests/scheduler/test_hostile.py runs its attack",
    "jobs": "a control plane with 4,000 jobs: `make bench`",
    "links_live": "two schedulers and a stream of jobs: `make bench`; the stream is that of `links`",
    "memory": "a control plane that is full: `make bench`",
    "openb": "the trace comes from outside; tests/placement/test_benchmarks.py replays a small one",
    "pulumi": "the engine: `make bench`",
    "reconcile": "three control planes: `make bench`",
    "scheduler_perf": "tests/scheduler/test_scheduler_perf.py runs some cases in the smallest form",
    "scheduler": "machines by kwok on a control plane of its own: `make bench`",
}
"""Benchmarks that do not run here, and why; their modules are imported, and their options read."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def run_main(name: str, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a benchmark in this process."""
    module = import_module(f"benchmarks.{name}.__main__" if (HERE / name).is_dir() else f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    module.main()


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fork the measured processes of the command line: their times do not count here."""
    start = measure.run

    def fork(command: Sequence[str], environment: Mapping[str, str] | None = None) -> measure.Run:
        if tuple(command[:3]) != forked.COMMAND:
            return start(command, environment)
        done = forked.run(command[3:], env={**os.environ, **(environment or {})})
        assert done.returncode == 0, done.stderr
        return measure.Run(1.0, 1)

    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "run", fork)
    monkeypatch.setattr(compile_benchmark, "run", fork)
    for name in SMALLEST:
        module = import_module(f"benchmarks.{name}")
        if getattr(module, "run", None) is start:
            monkeypatch.setattr(module, "run", fork)


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


def test_each_benchmark_runs_here_or_says_where() -> None:
    assert set(benchmarks()) == {*SMALLEST, *ELSEWHERE}
    assert set(SMALLEST).isdisjoint(ELSEWHERE)
    named = [word for reason in ELSEWHERE.values() for word in reason.split() if word.startswith("tests/")]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_form(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_main(name, SMALLEST[name].split(), monkeypatch)
    assert "bar " in capsys.readouterr().out


@pytest.mark.usefixtures("forking")
def test_one_spec_is_edited_and_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_benchmark, "fastest", lambda command, _, *more: measure.fastest(command, 1, *more))
    bench = compile_benchmark.Bench(tmp_path, 1)
    compile_benchmark.incremental(bench, 20)
    assert [each.name for each in bench.bars] == ["validate-again", "render-again", "help-startup"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_options_are_read(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(name, ["--help"], monkeypatch)
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
