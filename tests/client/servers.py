"""Real gRPC servers of one process each, for tests of the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from avactl_client import Channel

from tools.controlplane.process import free_port
from tools.waiting import patience, wait_until

PATIENCE = patience()
_PROGRAM = Path(__file__).with_name("program.py")


class Servers:
    """Servers by name; each calls itself by its name in responses."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}

    def start(self, name: str, mode: str = "serve") -> str:
        """Start a server, at its address of before if it has one, and return the address."""
        address = self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
        process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), name, address, mode], stdout=subprocess.PIPE, text=True
        )
        self._processes[name] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        return address

    def kill(self, name: str) -> None:
        """Kill a server."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def restart(self, name: str, mode: str) -> None:
        """Start a server anew, in another mode."""
        self.kill(name)
        self.start(name, mode)

    def close(self) -> None:
        """Kill all servers."""
        for name in list(self._processes):
            self.kill(name)

    def known(self) -> list[str]:
        """Return all addresses, as DNS would."""
        return list(self.addresses.values())


def connected(channel: Channel, count: int) -> None:
    """Wait until this number of servers get calls."""
    wait_until(lambda: sum(channel.servers().values()) == count)
