"""The sandbox of Python files: attacks on it with all of its layers, and with one or two taken away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from avactl.spec.python_files import sandbox_runner
from avactl.spec.python_files.sandbox import LAYERS
from tests.source.layers import DARWIN, NO_HOOK, NO_NAMESPACES, NOTHING, OLD_LANDLOCK, PIPE, change, run
from tools.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's layers are Linux's")

TOKEN = "tell-nobody-5d1e"
ATTACKS = Path(__file__).with_name("attacks.py")


class Outside(NamedTuple):
    """The things that attacks reach for."""

    given: dict[str, Any]
    files: Path
    sibling: subprocess.Popen[bytes]
    victim: subprocess.Popen[bytes]

    def state(self) -> list[Any]:
        """All that must not change."""
        kinds = ("st_mode", "st_size", "st_mtime_ns", "st_uid", "st_nlink")
        files = [(p.name, *(getattr(p.stat(), kind) for kind in kinds)) for p in sorted(self.files.iterdir())]
        pid = self.sibling.pid
        limits = Path(f"/proc/{pid}/limits").read_text()
        return [files, self.sibling.poll(), self.victim.poll(), limits, os.getpriority(os.PRIO_PROCESS, pid)]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    files = tmp_path / "outside"
    (files / "empty").mkdir(parents=True)
    for name in ("canary", "canary.a", "canary.b"):
        (files / name).write_text("secret-of-the-canary\n")
    with contextlib.ExitStack() as stack:
        # /proc shows the environment of a process as it was at its start: the sibling stands for a parent with a token.
        environment = {"AVACTL_TEST_SECRET": TOKEN}
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        processes = [subprocess.Popen(sleep, env=environment, start_new_session=True) for _ in range(2)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(f"\0avactl-test-{os.getpid()}")
        server.listen()
        origin = next(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("_[jq]*.so"))
        root = tmp_path / "repository"
        root.mkdir()
        shutil.copy(origin, root / "extension.so")
        given = {
            "canary": str(files / "canary"),
            "parent": processes[0].pid,
            "sibling": processes[0].pid,
            "victim": processes[1].pid,
            "abstract": f"avactl-test-{os.getpid()}",
            "extension": origin.name.partition(".")[0],
        }
        (root / "given.json").write_text(json.dumps(given))
        yield Outside(given, files, processes[0], processes[1])


def attack(outside: Outside) -> tuple[dict[str, str], bytes]:
    """The error of each attack, "" where it succeeded; and the whole answer."""
    root = outside.files.with_name("repository")
    answer = run(root, ATTACKS.read_text())
    assert answer.missing == ()
    lines = [line for line in answer.data.split(b"\n") if line.startswith(b"{")]
    assert lines, answer
    assert b"documents" not in lines[-1], lines[-1]
    return json.loads(lines[-1]), answer.data


def test_the_attacks_succeed_without_a_sandbox(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    before = outside.state()
    change(monkeypatch, *NOTHING)
    told, data = attack(outside)
    assert {name: error for name, error in told.items() if error} == {}
    assert len(told) >= 80
    assert TOKEN.encode() in data
    assert outside.state() != before


HOOKED = frozenset(
    (
        *("extension_loader", "package_path", "ctypes_of_subclasses", "objects", "replaced_code", "made_code"),
        *("back_door", "foreign_extension"),
    )
)
"""Attacks that the hook alone stops, and that harm nothing outside."""


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((), id="all"),
        pytest.param((NO_NAMESPACES,), id="no-namespaces"),
        pytest.param((NO_HOOK,), id="no-hook"),
        pytest.param((NO_HOOK, NO_NAMESPACES, OLD_LANDLOCK), id="no-hook-no-namespaces-first-landlock"),
    ],
)
def test_every_attack_is_stopped(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, statements: tuple[str, ...]
) -> None:
    before = outside.state()
    change(monkeypatch, *statements)
    told, data = attack(outside)
    allowed = HOOKED if NO_HOOK in statements else frozenset()
    assert [name for name, error in told.items() if not error and name not in allowed] == []
    assert TOKEN.encode() not in data
    assert b"secret-of-the-canary" not in data
    assert outside.state() == before


@pytest.mark.parametrize(
    ("statement", "layer"),
    [
        ("landlock.apply = lambda *_: False", "Landlock"),
        ("seccomp.apply = lambda *_: False", "seccomp"),
        ("limits.apply = lambda *_: False", "resource limits"),
        ("process.drop_privileges = lambda *_: False", "dropped privileges"),
        ("import os; os.uname = lambda: os.uname_result(('', '', '', '', 'riscv64'))", "seccomp"),
        (DARWIN, "seccomp"),
    ],
)
def test_nothing_is_evaluated_without_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, layer: str
) -> None:
    change(monkeypatch, statement)
    answer = run(tmp_path, "import os\nos.write(4, b'x')\n")
    assert layer in answer.missing
    assert set(answer.data.decode().split(",")) <= set(LAYERS)


# -- time, memory, and the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        "10 ** 10 ** 9",
        "import time; time.sleep(60)",
        "from signal import *\nfor n in {*range(1, 32)} - {9, 19}: signal(n, SIG_IGN)\nwhile True: pass",
    ],
)
def test_a_file_without_an_end_is_killed(tmp_path: Path, source: str) -> None:
    assert not run(tmp_path, source, seconds=2.0).in_time


def test_a_flood_is_cut_off(tmp_path: Path) -> None:
    answer = run(tmp_path, f"{PIPE}while True: os.write(out, bytes(65536))\n")
    assert answer.too_long
    assert len(answer.data) < 2 * sandbox_runner.MAX_ANSWER


def test_corrupt_bytecode_ends_the_child_only(tmp_path: Path) -> None:
    # A constant far out of range, by marshal: the interpreter believes code objects, and reads foreign memory.
    source = """
    import marshal, opcode
    def f(): return 1, print, f, 2, f, print
    code = f.__code__.co_code
    extended, load = opcode.opmap["EXTENDED_ARG"], opcode.opmap["LOAD_CONST"]
    wild = bytes([extended, 255, extended, 255, load, 255, load, 255]) * (len(code) // 8) + code[: len(code) % 8]
    eval(marshal.loads(marshal.dumps(f.__code__).replace(code, wild)))
    specs = []
    """
    answer = run(tmp_path, source)
    assert answer.in_time
    assert answer.data == b""


def test_the_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "spec.py").write_text("import time\ntime.sleep(3600)\n")
    program = """
    import os, subprocess, sys
    from avactl.spec.python_files import sandbox_runner
    begun = subprocess.Popen
    def popen(*arguments, **options):
        child = begun(*arguments, **options)
        print(child.pid, flush=True)
        return child
    subprocess.Popen = popen
    sandbox_runner.run("avactl.program.python_capture", sys.argv[1], 60.0, {"path": "spec.py"})
    """
    command = [sys.executable, "-c", textwrap.dedent(program), os.path.realpath(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: "Seccomp:\t2" in status_of(child), failed=lambda: not alive(child))
        parent.send_signal(signal.SIGKILL)
    try:
        wait_until(lambda: not alive(child))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def alive(pid: int) -> bool:
    return bool(status_of(pid)) and "\nState:\tZ" not in status_of(pid)


def status_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text()
    return ""
