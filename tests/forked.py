"""Run the command line in processes that are forked from one with its imports: a start of Python costs 0.3 s of CPU.

Such a process has arguments, current directory, environment and standard streams as if it were started by itself. A
test of the start (locale, `sys.path`, closed streams, resource limits, signals) uses `subprocess`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from tests.fork_server import LENGTH

COMMAND = (sys.executable, "-m", "avactl.cli.main")
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TERMINAL_", "TYPER_")
"""Variables that are read at the start or by imports; with others than in this process, no process is forked."""


class _Server:
    """The process to fork from. It ends with this process, and it is started by the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
            root = Path(__file__).resolve().parent.parent
            self._process = subprocess.Popen(
                command, cwd=root, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )

    def start(
        self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str], streams: Sequence[int]
    ) -> socket.socket:
        """Fork a process; return the socket from which its process ID and exit code come, each on a line."""
        ours, theirs = socket.socketpair()
        request = json.dumps((list(words), str((cwd or Path()).absolute()), dict(env))).encode()
        with theirs, self._lock:
            head = len(request).to_bytes(LENGTH, "big")
            socket.send_fds(self._requests, [head], [*streams, theirs.fileno()])
            self._requests.sendall(request)
        return ours


_server = cache(_Server)


def run(
    words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `avactl WORDS` to its end, without input; like `subprocess.run` with captured text."""
    env = os.environ if env is None else env
    if any(env.get(name) != os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_AT_START)):
        return subprocess.run(
            [*COMMAND, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    with ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        output, errors = (stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(2))
        streams = [nothing.fileno(), output.fileno(), errors.fileno()]
        with _server().start(words, cwd, env, streams) as told, told.makefile() as lines:
            process = int(lines.readline())
            told.settimeout(timeout)
            try:
                code = int(lines.readline())
            except BaseException:
                os.kill(process, signal.SIGKILL)
                raise
        for stream in (output, errors):
            stream.seek(0)
        return subprocess.CompletedProcess([*COMMAND, *words], code, output.read(), errors.read())
