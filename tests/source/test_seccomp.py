"""seccomp by itself: which system calls a sandboxed process has when all other layers are away."""

from __future__ import annotations

import errno
import json
import platform
import sys
import textwrap
from pathlib import Path

import pytest

from avactl.spec.python_files.sandbox import seccomp
from tests.source.layers import NO_HOOK, NO_LANDLOCK, NO_LIMITS, NO_NAMESPACES, PIPE, change, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")

RAW = (
    PIPE
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *(ctypes.c_long(each) for each in arguments))
    return ctypes.get_errno() if result < 0 else 0

"""
)
SECCOMP_ONLY = (NO_HOOK, NO_NAMESPACES, NO_LANDLOCK, NO_LIMITS)
MACHINE = platform.machine()
known = pytest.mark.skipif(MACHINE not in ("x86_64", "aarch64"), reason="seccomp has no table for this machine")


@known
def test_seccomp_alone_refuses_every_other_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, *SECCOMP_ONLY)
    left_out = {
        number for name, number in seccomp.allowed_numbers(MACHINE).items() if name not in ("clone3", "openat2")
    }
    left_out |= {
        335,
        336,
    }  # uretprobe, uprobe: no filter sees them, and outside of a probe they are an illegal instruction
    getpgid = {"x86_64": 121, "aarch64": 155}[MACHINE]
    source = f"""
    if raw({getpgid}, 0) != 1:
        os._exit(1)  # no filter: the calls below would do harm
    errors = {{number: raw(number, *[-1] * 6) for number in range(512) if number not in {left_out}}}
    os.write(out, json.dumps(errors).encode())
    os._exit(0)
    """
    errors = json.loads(run(tmp_path, RAW + textwrap.dedent(source)).data)
    assert len(errors) > 400
    assert {int(number) for number, error in errors.items() if error != errno.EPERM} == {435, 437}
    assert errors["435"] == errors["437"] == errno.ENOSYS


@known
def test_seccomp_looks_at_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, *SECCOMP_ONLY)
    n = seccomp.allowed_numbers(MACHINE)
    high = 1 << 40
    path = "ctypes.addressof(path)"
    calls = {
        "read": (f"{n['openat']}, -100, {path}, 0", False),
        "close-on-exec": (f"{n['openat']}, -100, {path}, os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW", False),
        "read, high bits": (f"{n['openat']}, -100, {path}, {high}", False),
        **{
            flag: (f"{n['openat']}, -100, {path}, os.{flag}", True)
            for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE", "O_SYNC")
        },
        "write, high bits": (f"{n['openat']}, -100, {path}, {high} | 1", True),
        **({"open": (f"2, {path}, 0", False), "open to write": (f"2, {path}, 1", True)} if MACHINE == "x86_64" else {}),
        "own limits": (f"{n['prlimit64']}, 0, 7, 0, limit", False),
        "own limits, set": (f"{n['prlimit64']}, 0, 7, limit, 0", True),
        "own limits, set by a high pointer": (f"{n['prlimit64']}, 0, 7, {high}, 0", True),
        "other's limits": (f"{n['prlimit64']}, 1, 7, 0, limit", True),
        "memory": (f"{n['mmap']}, 0, 4096, 3, 0x22, -1, 0", False),
        "executable memory": (f"{n['mmap']}, 0, 4096, 5, 0x22, -1, 0", True),
        "writable code": (f"{n['mmap']}, 0, 4096, 7, 2, 0, 0", True),
        "writable code, high bits": (f"{n['mmap']}, 0, 4096, {high} | 7, 0x22, -1, 0", True),
        "code": (f"{n['mprotect']}, 0, 4096, 5", True),
        "descriptor's flags": (f"{n['fcntl']}, 0, 1", False),
        "descriptor's owner": (f"{n['fcntl']}, out, 8, 1", True),
        "terminal's input": (f"{n['ioctl']}, 0, 0x5412, limit", True),
    }
    lines = "".join(f"told[{name!r}] = raw({arguments})\n" for name, (arguments, _) in calls.items())
    source = f"""
    path = ctypes.create_string_buffer(b"{tmp_path}")
    buffer = ctypes.create_string_buffer(64)
    limit = ctypes.addressof(buffer)
    told = {{}}
    """
    end = "os.write(out, json.dumps(told).encode())\nos._exit(0)\n"
    told = json.loads(run(tmp_path, RAW + textwrap.dedent(source) + lines + end).data)
    assert {name: error == errno.EPERM for name, error in told.items()} == {
        n: refused for n, (_, refused) in calls.items()
    }


INT_80 = (
    "import mmap; page = mmap.mmap(-1, 4096, prot=7); page.write(bytes.fromhex('b814000000cd80c3')); sys.page = page"
)
"""An executable page that calls getpid of 32-bit x86: mov eax, 20; int 0x80; ret."""


@pytest.mark.skipif(MACHINE != "x86_64", reason="calls of other tables are x86's")
@pytest.mark.parametrize(
    "call",
    [
        f"raw({0x40000000 | 39})",
        "import sys\nctypes.CFUNCTYPE(int)(ctypes.addressof(ctypes.c_char.from_buffer(sys.page)))()",
    ],
    ids=["x32", "i386"],
)
def test_calls_of_other_tables_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    change(monkeypatch, INT_80, *SECCOMP_ONLY)
    answer = run(tmp_path, f"{RAW}os.write(out, b'begun ')\n{call}\nos.write(out, b'done')\n")
    assert answer.data == b"begun "


def test_the_filter_is_made_for_both_machines() -> None:
    for machine in ("x86_64", "aarch64"):
        lines = seccomp.filter_program(machine)
        assert len(lines) < 4096
        # A jump leads forward, to an instruction that there is; every path ends in a return.
        for index, (code, yes, no, _) in enumerate(lines):
            assert code in (0x20, 0x54, 0x06) or index + 1 + max(yes, no) < len(lines)
        assert lines[-1] == (0x06, 0, 0, 0x00050000 | errno.EPERM)
        assert len(set(seccomp.allowed_numbers(machine).values())) == len(seccomp.allowed_numbers(machine))
