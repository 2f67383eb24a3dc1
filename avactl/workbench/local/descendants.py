"""Processes below this one, by Linux's /proc: a pod's end ends everything that it started.

A container ends with its first process. Here, processes that left their parent (daemons, `setsid`) become children of
this process (PR_SET_CHILD_SUBREAPER) and are recognized by a variable of their environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from typing import NamedTuple

MARK = "AVACTL_LOCAL_POD"
"""Variable in all processes of a pod."""
_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_END_TIMEOUT_S = 10.0
"""Seconds until processes that do not die (blocked in the kernel) are left alone."""


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    dead: bool


def adopt_orphans() -> None:
    """Make processes whose parents end children of this one."""
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Ask for SIGTERM when the parent is killed; to be called in a new child."""
    _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


def kill_descendants(session: int | None = None, mark: str = "", spare: Collection[int] = ()) -> None:
    """Kill the descendants of one session or with one mark, or all; returns when they are gone.

    `spare`: children that something else waits for.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    while time.monotonic() < deadline:
        found = [
            process
            for process in _list_descendants(os.getpid())
            if process.pid not in spare
            and (session is None or process.session == session or _has_mark(process.pid, mark))
        ]
        if not found:
            return
        for process in found:
            if not process.dead:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            if process.parent == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
        time.sleep(0.005)  # the kernel has no event for the death of a process that is no child


def _list_descendants(root: int) -> list[_Process]:
    children: dict[int, list[_Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a fraction of the time
        if name.isdigit() and (process := _read(int(name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for process in found:  # grows
        found += children.get(process.pid, ())
    return found


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The name of the program may contain anything, also a parenthesis.
            state, parent, _, session, *_ = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return _Process(pid, int(parent), int(session), state in b"ZX")


def _has_mark(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False
