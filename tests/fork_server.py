"""Fork processes of the command line from one that has imported what most commands need.

`tests/forked.py` starts this file and sends requests over the inherited socket `sys.argv[1]`. What other commands than
those of daemons import by themselves (`avactl.cli.*` and the packages behind it) is still imported in each process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp  # noqa: F401 - for the imports, here and below
import orjson  # noqa: F401
import prometheus_client  # noqa: F401
import typer.main  # noqa: F401

import avactl.compiler.driver  # noqa: F401

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads must not be forked
import numpy  # noqa: F401

_DAEMONS = {
    "cache": "avactl.daemons.cache.daemon",
    "delivery": "avactl.daemons.delivery.daemon",
    "reconcile": "avactl.apply.reconcile.daemon",
    "scheduler": "avactl.scheduler.daemon",
    "serving": "avactl.daemons.serving.daemon",
}
"""Modules by command, imported here before its first process is forked: they take most of the time of a start."""
LENGTH = 8
"""Bytes of a request's length, before it."""
DESCRIPTORS = 4
"""Standard input, output and error of the new process, and the socket for its process ID and status."""

Request = tuple[list[str], str, dict[str, str], str]
"""Arguments, current directory, environment, and the installed script; without one, as with `python -m`."""


def receive(requests: socket.socket) -> tuple[Request, list[int]] | None:
    """Return the next request and its descriptors, or None if the client has gone."""
    head, descriptors, _, _ = socket.recv_fds(requests, LENGTH, DESCRIPTORS, socket.MSG_WAITALL)
    if not head:
        return None
    size = int.from_bytes(head, "big")
    return json.loads(requests.recv(size, socket.MSG_WAITALL)), descriptors


def _serve(requests: socket.socket) -> Request | None:
    """Answer requests until the client has gone, in a new process: return its request."""
    wakes, wake = socket.socketpair()
    wakes.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, wakes], [], [])
        if wakes in ready:
            wakes.recv(4096)
            for process in list(running):
                found, status = os.waitpid(process, os.WNOHANG)
                if found:
                    reply = running.pop(process)
                    _send(reply, os.waitstatus_to_exitcode(status))
                    os.close(reply)
        if requests in ready:
            received = receive(requests)
            if received is None:
                return None
            request, (*streams, reply) = received
            if daemon := _DAEMONS.pop(next(iter(request[0]), ""), None):
                importlib.import_module(daemon)
                gc.freeze()
            if len(list(Path("/proc/self/task").iterdir())) > 1:
                raise RuntimeError("an import has started a thread, and the process would be forked without it")
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                requests.detach(), wakes.detach(), wake.detach()
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                return request
            for stream in streams:
                os.close(stream)
            running[process] = reply
            _send(reply, process)


def _send(reply: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the client does not wait for it
        os.write(reply, b"%d\n" % number)


def main() -> None:
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    arguments, directory, environment, script = request
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    # Those of this process belong to other files, which may be seekable.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv[1:] = arguments
    if script:
        sys.argv[0], sys.path[0] = script, str(Path(script).parent)
        importlib.import_module("avactl.cli.main").main()
    else:
        sys.path[0] = directory
        runpy.run_module("avactl.cli.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
