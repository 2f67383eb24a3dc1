"""A tier's FUSE mount, in a mount namespace of its own: nothing of it stays on the machine, even after a kill -9."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.alluxio.cluster import Alluxio
from tools.controlplane import StartError, UnavailableError, process
from tools.fuse import require_fuse
from tools.waiting import patience, wait_until

START_TIMEOUT = 180.0  # seconds
POLL = 0.05  # seconds


def require_libfuse() -> None:
    """Raise UnavailableError, with one line, if Alluxio's FUSE cannot mount in a namespace of its own."""
    require_fuse("mount")
    if ctypes.util.find_library("fuse") is None and ctypes.util.find_library("fuse3") is None:
        raise UnavailableError("FUSE unavailable: no libfuse (Debian: libfuse2)")


class Fuse:
    """The machine and the FUSE container: a namespace with a shared directory, and the tier's script in it.

    `path` is where the tier is mounted (`/mnt/avactl/read`), `files` the files of its container by path, `command` the
    one that runs: /config/fuse.sh. Ends with its cluster.
    """

    def __init__(self, cluster: Alluxio, path: str, files: Mapping[str, str], command: str = "/config/fuse.sh") -> None:
        require_libfuse()
        self._cluster = cluster
        self._base = cluster.folder / "mnt"
        self._base.mkdir()
        self._at = self._base / Path(path).name
        self._volumes = self._base / ".volumes" / self._at.name
        volumes = Path(path).parent / ".volumes" / self._at.name
        places = {path: str(self._at), str(volumes): str(self._volumes)}
        places |= {"/entrypoint.sh": str(cluster.folder / "entrypoint.sh")}
        places |= {name: f"{cluster.folder}/fuse{name}" for name in files}
        for name, text in files.items():
            for inside, outside in places.items():
                text = text.replace(inside, outside)
            Path(places[name]).parent.mkdir(parents=True, exist_ok=True)
            Path(places[name]).write_text(text)
        self._command = places[command]
        share = 'mount --bind "$0" "$0" && mount --make-shared "$0" && touch "$0/.shared" && exec sleep infinity'
        unshare = _tool("unshare")
        cluster.spawn("machine", [unshare, "--mount", "--propagation", "private", "sh", "-c", share, self._base])
        self._wait("machine", self._base / ".shared")
        self._pods = 0

    @property
    def path(self) -> Path:
        """The mounted tier, on the machine."""
        return _inside(self._cluster.pid("machine"), self._at)

    def keep_volumes(self) -> None:
        """Start the container that keeps the volumes of pods, unless it runs."""
        if not self._cluster.running("volumes"):
            script = f"{self._cluster.folder}/fuse/config/volumes.sh"
            self._cluster.spawn("volumes", [*self._enter(), "bash", script])

    @property
    def volumes(self) -> Path:
        """The list of volumes that the container follows."""
        return self._cluster.folder / "fuse" / "volumes" / "volumes"

    def volume(self, path: str) -> Path:
        """A volume on the machine, by its directory as compiled."""
        return _inside(self._cluster.pid("machine"), self._volumes / Path(path).name)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the container, as the kubelet runs a probe."""
        command = [*self._enter(), "bash", f"{self._cluster.folder}/fuse{script}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(START_TIMEOUT))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the FUSE process for the length of a block, so that it answers nothing."""
        group = os.getpgid(self._cluster.pid("fuse"))
        os.killpg(group, signal.SIGSTOP)
        # A thread that takes a request before it stops would keep whoever asks, even after a kill -9.
        wait_until(lambda: _is_stopped(group), "all threads of FUSE have stopped")
        try:
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    def start(self) -> None:
        """Start the FUSE container, and wait until it is mounted. Raises StartError."""
        self._cluster.spawn("fuse", [*self._enter(), "bash", self._command])
        deadline = time.monotonic() + patience(START_TIMEOUT)
        while not self.mounted(self.path):
            if not self._cluster.running("fuse") or time.monotonic() > deadline:
                raise StartError(f"FUSE did not start:\n{process.tail(self._cluster.log('fuse'), 30)}")
            time.sleep(POLL)

    def kill(self) -> None:
        """End the FUSE process with kill -9."""
        self._cluster.kill("fuse")

    def pod(self) -> Path:
        """Start another container on the machine, with the propagation HostToContainer; return its view of the tier."""
        self._pods += 1
        name, marker = f"pod-{self._pods}", self._base / f".pod-{self._pods}"
        command = 'touch "$0" && exec sleep infinity'
        unshare = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", command, str(marker)]
        self._cluster.spawn(name, [*self._enter(), *unshare])
        self._wait(name, marker)
        return _inside(self._cluster.pid(name), self._at)

    def pod_with(self, volume: str) -> Path:
        """Start a pod with a volume, by its directory on the machine, as the kubelet does; return its mount.

        Raises StartError if the volume does not come.
        """
        self._pods += 1
        name, marker = f"pod-{self._pods}", self._base / f".pod-{self._pods}"
        source, target = self._volumes / Path(volume).name, self._cluster.folder / name
        target.mkdir()
        deadline = time.monotonic() + patience(START_TIMEOUT)
        while not _is_directory(self.volume(volume)):
            if time.monotonic() > deadline:
                raise StartError(f"no volume {source}:\n{process.tail(self._cluster.log('volumes'), 30)}")
            time.sleep(POLL)
        command = 'mount --rbind "$1" "$2" && mount --make-rslave "$2" && touch "$0" && exec sleep infinity'
        unshare = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", command]
        self._cluster.spawn(name, [*self._enter(), *unshare, str(marker), str(source), str(target)])
        self._wait(name, marker)
        return _inside(self._cluster.pid(name), target)

    def mounted(self, path: Path) -> bool:
        """Return True if a view of the tier is a mount that answers."""
        try:
            return path.stat().st_dev != path.parent.stat().st_dev and any(path.iterdir())
        except OSError:
            return False

    def _enter(self) -> list[str]:
        return [_tool("nsenter"), "--target", str(self._cluster.pid("machine")), "--mount"]

    def _wait(self, name: str, marker: Path) -> None:
        deadline = time.monotonic() + patience(START_TIMEOUT)
        while not marker.exists():
            if not self._cluster.running(name) or time.monotonic() > deadline:
                raise StartError(f"{name} did not start:\n{process.tail(self._cluster.log(name), 30)}")
            time.sleep(POLL)


def _is_stopped(group: int) -> bool:
    """Return True if no thread of a process group runs."""
    for stat in Path("/proc").glob("[0-9]*/task/*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended
        if int(its_group) == group and state not in "TtZX":
            return False
    return True


def _is_directory(path: Path) -> bool:
    """Return True for a directory that answers; False for the mount of a process that has ended."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def _inside(pid: int, path: Path) -> Path:
    """A path as a process in another mount namespace sees it."""
    return Path(f"/proc/{pid}/root{path}")
