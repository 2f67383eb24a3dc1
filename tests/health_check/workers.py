"""Workers in a health check, as processes on loopback addresses of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from avactl.workbench.local.addresses import AddressBlock
from tools.elastic import environment
from tools.waiting import patience, wait_until

"""Seconds until a test fails."""

_BAD_NETWORK = """\
import signal, socket, sys, time
if "avactl_worker.health_check.probe" in " ".join(sys.orig_argv):
    if FAULT == "hangs" and sys.orig_argv[-1] != "{}":
        signal.pause()  # as in a driver that does not answer
    class Corrupting(socket.socket):
        def recv(self, *args):
            data = super().recv(*args)
            return bytes(byte ^ 1 for byte in data) if len(data) > 64 else data
    class Delaying(socket.socket):
        def recv(self, *args):
            if not delayed:
                delayed.append(time.sleep({"steady": 0.2, "slow": 4.0}[FAULT]))
            return super().recv(*args)
    delayed = []
    class Refusing(socket.socket):
        def connect(self, address): raise ConnectionResetError("reset by the network")
        def accept(self): raise ConnectionResetError("reset by the network")
    socket.socket = {"corrupts": Corrupting, "resets": Refusing}.get(FAULT, Delaying)
"""
"""What every Python of a bad node imports first: faults of its network, as a test sees them."""


class Workers:
    """Starts workers and ends them at the end of a `with` block."""

    def __init__(
        self, folder: Path, count: int, *options: str, size: int = 1 << 18, python: str = sys.executable
    ) -> None:
        """`options` replace the settings of the same name."""
        self._folder, self._block = folder, AddressBlock()
        self._port = self._block.own_port()
        self.rendezvous = self._block.own_port()
        self._command = [
            *(python, "-m", "avactl_worker.health_check", "--workers", str(count)),
            *("--coordinator", f"{self.address(0)}:{self._port}", "--rendezvous", str(self.rendezvous)),
            *("--size", str(size), "--timeout", "5", "--wait", "60", "--replacements", "2", "--below", "0.01"),
            *options,
        ]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._incarnations = 0

    def address(self, index: int) -> str:
        return self._block.address(index)

    @property
    def coordinator(self) -> tuple[str, int]:
        return self.address(0), self._port

    def start(self, index: int, *, restarts: int = 0, fault: str = "", run: str = "r1") -> None:
        """Start a worker, on a bad node with `fault`."""
        self._incarnations += 1
        env = {
            **environment(),
            "JOB_COMPLETION_INDEX": str(index),
            "POD_IP": self.address(index),
            "AVACTL_RUN": run,
            "POD_UID": f"pod-{self._incarnations}",
            "AVACTL_IGNORED_FAILURES": str(restarts or ""),
        }
        if fault:
            node = self._folder / fault
            node.mkdir(exist_ok=True)
            (node / "sitecustomize.py").write_text(_BAD_NETWORK.replace("FAULT", repr(fault)))
            env["PYTHONPATH"] = f"{node}{os.pathsep}{env['PYTHONPATH']}"
        with self._log(index).open("ab") as log:
            self.processes[index] = subprocess.Popen(
                self._command, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def _log(self, index: int) -> Path:
        return self._folder / f"worker-{index}.log"

    def output(self, index: int) -> str:
        return self._log(index).read_text()

    def send(self, number: signal.Signals, index: int) -> None:
        """Send a signal to a worker and its tests."""
        os.killpg(self.processes[index].pid, number)

    def end(self, index: int) -> int:
        """Wait for a worker's exit code."""
        return self.processes[index].wait(patience())

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, details=lambda: {index: self.output(index) for index in self.processes})

    def until_printed(self, index: int, text: str) -> None:
        self.until(lambda: text in self.output(index))

    def until_listening(self, index: int) -> None:
        """Wait until a worker is in the check."""
        wanted = f"{bytes(map(int, reversed(self.address(index).split('.')))).hex().upper()}:{self._port:04X}"

        def listens() -> bool:
            sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            return any(each[1] == wanted and each[3] == "0A" for each in sockets)

        self.until(listens)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for each in self.processes.values():
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
        self._block.close()
        if kind is not None:
            for index in self.processes:
                print(f"-- worker {index}\n{self.output(index)}")
