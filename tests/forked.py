"""Run the command line in processes that are forked from one with its imports: a start of Python costs 0.3 s of CPU.

Such a process has arguments, current directory, environment and standard streams as if it were started by itself. A
test of the start (locale, `sys.path`, closed streams, resource limits, signals) uses `subprocess`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

from tests.fork_server import LENGTH, receive

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
        self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str], streams: Sequence[int], script: str = ""
    ) -> socket.socket:
        """Fork a process; return the socket from which its process ID and exit code come, each on a line."""
        ours, theirs = socket.socketpair()
        request = json.dumps((list(words), str((cwd or Path()).absolute()), dict(env), script)).encode()
        with theirs, self._lock:
            head = len(request).to_bytes(LENGTH, "big")
            socket.send_fds(self._requests, [head], [*streams, theirs.fileno()])
            self._requests.sendall(request)
        return ours


_server = cache(_Server)


class Process:
    """A forked process, with what tests use of `subprocess.Popen`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        with channel.makefile("rb", buffering=0) as lines:
            self.pid = int(lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._channel, select.POLLIN)
            if not ready.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._channel, self._channel.makefile("rb", buffering=0) as lines:
                self.returncode = int(lines.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


INSTALLED = str(Path(sys.executable).with_name("avactl"))
"""The installed script. Unlike COMMAND, it imports nothing from the current directory."""
_CLIENT = """#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps((sys.argv[1:], os.getcwd(), dict(os.environ), "")).encode()
socket.send_fds(server, [len(request).to_bytes({length}, "big")], [0, 1, 2])
server.sendall(request)
sys.exit(int(server.makefile().readline()))
"""


@contextmanager
def executable(path: Path) -> Iterator[None]:
    """Write a program `avactl` for scripts of tests, which runs forked processes while the block runs."""
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as threads:
        # The path of a socket has at most 107 bytes.
        address = Path(gettempdir(), f"avactl-test-{uuid.uuid4().hex}")
        listener.bind(str(address))
        listener.listen()
        path.write_text(_CLIENT.format(python=sys.executable, address=str(address), length=LENGTH), encoding="utf-8")
        path.chmod(0o755)
        accepting = threads.submit(_accept, listener, threads)
        try:
            yield
        finally:
            address.unlink()
            listener.shutdown(socket.SHUT_RDWR)  # accept() returns
            accepting.result()


def _accept(listener: socket.socket, threads: ThreadPoolExecutor) -> None:
    with suppress(OSError):  # it was shut down
        while True:
            threads.submit(_answer, listener.accept()[0])


def _answer(client: socket.socket) -> None:
    """Run the command of a client with its streams, and send the exit code; close the connection on any error."""
    with client:
        received = receive(client)
        assert received is not None
        (words, directory, env, script), streams = received
        try:
            assert not _needs_start(env)
            process = Process(_server().start(words, Path(directory), env, streams, script))
        finally:
            for stream in streams:
                os.close(stream)
        client.sendall(b"%d\n" % process.wait())


def run(
    words: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    installed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `avactl WORDS` to its end, without input; like `subprocess.run` with captured text.

    `installed`: as its installed script, and not with `python -m`.
    """
    env = os.environ if env is None else env
    if _needs_start(env):
        return subprocess.run(
            [*([INSTALLED] if installed else COMMAND), *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    with ExitStack() as stack:
        output, errors = (stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(2))
        process = _fork(words, cwd, env, output, errors, INSTALLED if installed else "")
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for stream in (output, errors):
            stream.seek(0)
        return subprocess.CompletedProcess([*COMMAND, *words], code, output.read(), errors.read())


def start(
    words: Sequence[str], *, log: IO[bytes], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Process:
    """Start `avactl WORDS` without input; both streams go to a log."""
    env = os.environ if env is None else env
    assert not _needs_start(env)
    return _fork(words, cwd, env, log, log)


def _fork(
    words: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str],
    output: IO[Any],
    errors: IO[Any],
    script: str = "",
) -> Process:
    with Path(os.devnull).open("rb") as nothing:
        return Process(_server().start(words, cwd, env, [nothing.fileno(), output.fileno(), errors.fileno()], script))


def _needs_start(env: Mapping[str, str]) -> bool:
    return any(env.get(name) != os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_AT_START))
