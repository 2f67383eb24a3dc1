"""Child processes that cannot outlive this one, and loopback ports for them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

TRAMPOLINE = Path(__file__).with_name("trampoline.py")

# Below the range that the kernel gives to outgoing connections (32768 and up): a client that retries while a
# server is down could otherwise be given the server's own port, and even connect to itself.
PORTS = range(20000, 32000)

STOP_GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@cache
def _spawner() -> ThreadPoolExecutor:
    # The kernel counts the death of the thread that started a child as the parent's death, so all children are
    # started by one thread that lives as long as the interpreter.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="controlplane-spawn")


def spawn(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` (its first item an absolute path), both its outputs appended to `log`.

    The child leads a session of its own, so a Ctrl-C at the terminal does not reach it, and it is killed by the
    kernel when this process ends in whatever way. Raises OSError if it cannot be started.
    """
    argv = [sys.executable, "-I", "-S", str(TRAMPOLINE), str(os.getpid()), *map(str, command)]

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    return _spawner().submit(start).result()


def terminate(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a process: SIGTERM, up to `grace` seconds of patience (0 for none), then SIGKILL to its whole group."""
    if grace > 0 and process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    # The group and not the process: a child of the child must not stay behind either.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Closing:
    """A `with` block that calls `close` at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything. Closing twice is fine."""
        raise NotImplementedError


class Processes(Closing):
    """Child processes by name, which can be ended and started again."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a process that does not run, with its data and ports of before, and wait until it is ready."""
        raise NotImplementedError

    def pid(self, name: str) -> int:
        """The process id of a process that was started. Raises KeyError if it is not there."""
        return self._processes[name].pid

    def stop(self, name: str) -> None:
        """End a process as an orderly shutdown does; nothing if it does not run."""
        if running := self._processes.pop(name, None):
            terminate(running, STOP_GRACE)

    def kill(self, name: str) -> None:
        """End a process with kill -9; nothing if it does not run."""
        if running := self._processes.pop(name, None):
            terminate(running, grace=0)

    def restart(self, name: str) -> None:
        """Stop and start a process; its data, ports and credentials stay."""
        self.stop(name)
        self.start(name)


def free_port() -> int:
    """A TCP port that nothing listens on at this moment. Raises OSError if a thousand tries find none."""
    for _ in range(1000):
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


def tail(log: Path, lines: int) -> str:
    """The last `lines` lines of a log file; empty if there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
