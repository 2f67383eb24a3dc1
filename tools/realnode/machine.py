"""The namespaces of one node, which its keeper holds, and the processes in them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.controlplane import StartError, process
from tools.controlplane.build import cache_dir
from tools.controlplane.folder import OwnedFolder
from tools.realnode.keeper import remove_cgroup
from tools.realnode.requirements import find_cgroup_hierarchies
from tools.waiting import patience

PREFIX = "avactl-node-"
HERE = Path(__file__).parent
RUN_TIMEOUT = 120.0  # seconds
CLOSE_TIMEOUT = 300.0  # seconds; the kernel ends a hundred processes
OWN_NETWORK = Path("/proc/self/ns/net")


class Machine:
    """A folder, cgroups, and PID, mount and network namespaces. All end with `close`, or with this process."""

    def __init__(self, programs: Path | None = None) -> None:
        """`programs` is a folder whose programs the node prefers to those of the machine."""
        self._path = os.pathsep.join([*([str(programs)] if programs else []), os.environ.get("PATH", os.defpath)])
        nodes = cache_dir() / "nodes"
        nodes.mkdir(parents=True, exist_ok=True)
        self._owned = OwnedFolder(nodes, PREFIX, _remove_cgroups)
        self.folder = self._owned.path
        self.cgroup = f"/{self.folder.name}"
        # The interpreter's own standard library is enough; -I and -S leave out what a test's environment adds.
        places = [HERE / "keeper.py", self.folder, cache_dir(), *_cgroups(self.folder)]
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", *map(str, places)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        if not said.strip().isdecimal():
            said += self._keeper.stdout.read()
            self.close()
            raise StartError(f"the node's namespaces cannot be made: {said.strip()}")
        self._first = int(said)

    @property
    def network(self) -> Path:
        """The network namespace."""
        return Path(f"/proc/{self._first}/ns/net")

    def spawn(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program in the node; its output is in `log(name)`. It ends with the node."""
        environment = {"PATH": self._path, "HOME": "/root"}
        return process.spawn([*self._enter(), *command], self.log(name), environment)

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the node to its end. Raises CalledProcessError if it fails, unless `check` is False."""
        return subprocess.run(
            [*self._enter(), *command],
            env={**os.environ, "PATH": self._path},
            capture_output=True,
            text=True,
            check=check,
            timeout=RUN_TIMEOUT,
        )

    def ip(self, *arguments: str) -> None:
        """Run `ip` of the machine in the node's network: PIDs in its arguments are the machine's."""
        command = ["nsenter", f"--net={self.network}", "ip", *arguments]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=RUN_TIMEOUT)

    def attach(self, name: str, other: "Machine", other_name: str) -> None:
        """Connect the node to another: interface `name` here, `other_name` there."""
        peer = ["peer", "name", other_name, "netns", str(other._first)]
        self.ip("link", "add", name, "type", "veth", *peer)

    def log(self, name: str) -> Path:
        """The output of a program that `spawn` started."""
        return self.folder / f"{name}.log"

    def close(self) -> None:
        """End all processes of the node, and remove its cgroups and its folder. Closing twice is fine."""
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
            self._keeper.wait(patience(CLOSE_TIMEOUT))
            assert self._keeper.stdout is not None
            self._keeper.stdout.close()
            self._owned.remove()

    def _enter(self) -> list[str | Path]:
        nsenter = shutil.which("nsenter")
        assert nsenter is not None
        return [nsenter, f"--target={self._first}", "--mount", "--net", "--pid", "--wdns=/"]


def relay(log: Path, listen: tuple[Path, str], connect: tuple[Path, str]) -> subprocess.Popen[bytes]:
    """Start a relay between two networks, each with an address: see relay.py."""
    command: list[str | Path] = [sys.executable, "-I", "-S", HERE / "relay.py", *listen, *connect]
    return process.spawn(command, log, _NO_ENVIRONMENT)


_NO_ENVIRONMENT: Mapping[str, str] = {}


def _cgroups(folder: Path) -> list[Path]:
    """The node's cgroup in every hierarchy."""
    return [hierarchy / folder.name for hierarchy in find_cgroup_hierarchies()]


def _remove_cgroups(folder: Path) -> None:
    """Remove the cgroups of a node whose owner and keeper were both killed."""
    for group in _cgroups(folder):
        remove_cgroup(group)
