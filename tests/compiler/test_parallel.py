"""Work in several processes gives what work in one gives. Each test forks in a process without threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

_HEAD = """
import os, sys
from pathlib import Path
from unittest import mock
from avactl.base import parallel
from avactl.compiler.incremental import compile as incremental, loading
from avactl.apply.files import output
from avactl.apply.files.render import write_objects
from avactl.spec.repository.tree import DirTree
mock.patch.object(parallel, "_workers", 3).start()
for module, name in (loading, "_SLICE"), (incremental, "_SLICE"), (output, "_FILES_PER_SLICE"):
    mock.patch.object(module, name, 4).start()
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", _HEAD + code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment or None, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_slices_come_back_in_order() -> None:
    code = """
pids = parallel.in_slices(list(range(10)), lambda part: (os.getpid(), list(part)), 3)
assert [number for _, part in pids for number in part] == list(range(10))
assert len({pid for pid, _ in pids}) == 3 and pids[0][0] == os.getpid()
assert parallel.in_slices([], len, 3) == [0] and parallel.in_slices([1, 2, 3], len, 2) == [3]
"""
    run(code)


def test_what_fails_elsewhere_is_done_again_here() -> None:
    code = """
import signal
here = os.getpid()
def work(part):
    if os.getpid() != here:
        if 4 in part: os.kill(os.getpid(), signal.SIGKILL)
        if 8 in part: return object()  # not plain data
    return sum(part)
assert parallel.in_slices(list(range(10)), work, 3) == [3, 12, 30]
def bad(part):
    raise ValueError(f"{part[0]}")
for first_fails in (True, False):
    try:
        parallel.in_slices(list(range(10)), lambda part: bad(part) if first_fails or part[0] else 0, 3)
    except ValueError as error:
        assert str(error) == ("0" if first_fails else "3"), error
    else:
        raise AssertionError
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("a process was left")
"""
    run(code)


def test_same_files_and_same_kept_results(tmp_path: Path) -> None:
    code = """
specs, out = sys.argv[1:3]
compiled, written = write_objects(DirTree(specs), out)
print(sorted(compiled.kinds.items()), len(compiled.files), written.written, compiled.diagnostics)
"""
    specs = str(ROOT / "examples" / "ava")
    alone = 'mock.patch.object(parallel, "_workers", 1).start()\n' + code
    said = run(alone, specs, str(tmp_path / "a"), AVACTL_CACHE_DIR=str(tmp_path / "cache-a"))
    assert run(code, specs, str(tmp_path / "b"), AVACTL_CACHE_DIR=str(tmp_path / "cache-b")) == said
    assert content(tmp_path / "a") == content(tmp_path / "b")
    run(code, specs, str(tmp_path / "b"), AVACTL_CACHE_DIR=str(tmp_path / "cache-b"))
    kept = """
from avactl.compiler.incremental.records import KeptRecord
from avactl.compiler.incremental.disk import ResultStore
record = KeptRecord.load(ResultStore("compile", DirTree(sys.argv[1]).key))
reads = lambda table: sorted((str(key), sorted(map(str, result[0])), result[1]) for key, result in table.items())
print(sorted(record.specs.items()), reads(record.checks), reads(record.objects), reads(record.derived))
print(sorted(record.inputs), sorted(map(str, record.memos)), [(p, f[1:]) for p, f in record.files.items()])
"""
    one, other = (run(kept, specs, AVACTL_CACHE_DIR=str(tmp_path / f"cache-{name}")) for name in "ab")
    assert one == other


def test_same_problems(tmp_path: Path) -> None:
    code = """
from avactl.apply.files.paths import object_path
print(incremental.compile_cached(DirTree(sys.argv[1]), object_path).diagnostics)
"""
    golden = ROOT / "tests" / "golden" / "invalid"
    for area in ("base", "quota"):
        (tmp_path / "specs" / area).mkdir(parents=True)
        for path in (golden / area).glob("*.yaml"):
            (tmp_path / "specs" / area / path.name).write_bytes(path.read_bytes())
    specs, home = str(tmp_path / "specs"), str(tmp_path / "cache")
    said = run("parallel._workers = 1\n" + code, specs, AVACTL_CACHE_DIR=home)
    assert "error" in said
    assert run(code, specs, AVACTL_CACHE_DIR=home) == said
