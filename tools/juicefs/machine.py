"""A machine with JuiceFS's CSI driver, in a mount namespace of its own: nothing stays mounted, even after a kill -9."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.controlplane import StartError, UnavailableError, process
from tools.controlplane.folder import OwnedFolder
from tools.fuse import require_fuse
from tools.juicefs.build import build_binary
from tools.objectstore import ACCESS_KEY, SECRET_KEY, ObjectStore
from tools.waiting import patience

TIMEOUT = 60.0  # seconds
POLL = 0.05  # seconds


class Machine(process.Processes):
    """A machine, and an empty volume with SQLite metadata and its blocks in a bucket of an object store.

    `mount` does what the CSI driver does with a PersistentVolume, `run` runs a container's command on such a mount.
    Directories of the machine (`/mnt/…`) are below `folder`.
    """

    def __init__(self, store: ObjectStore, bucket: str, directories: Sequence[str] = ("/mnt", "/dev/shm")) -> None:
        require_fuse("bash")
        super().__init__()
        self._owned = OwnedFolder()
        self.folder = self._owned.path
        """Directory of logs, metadata and mounts."""
        self._directories = {name: f"{self.folder}{name}" for name in directories}
        self._binary = self.folder / "bin"
        self._binary.mkdir()
        for name in ("juicefs", "mount.juicefs"):
            (self._binary / name).symlink_to(build_binary())
        self._meta = f"sqlite3://{self.folder}/meta.db"
        marker = self.folder / ".namespace"
        self._spawn(
            "machine",
            [
                _tool("unshare"),
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                'touch "$0" && exec sleep infinity',
                str(marker),
            ],
        )
        self._wait("machine", marker.exists)
        host = store.url.removeprefix("http://")
        self._execute(
            [
                str(self._binary / "juicefs"),
                "format",
                "--storage",
                "s3",
                "--bucket",
                f"http://{bucket}.{host}",
                "--access-key",
                ACCESS_KEY,
                "--secret-key",
                SECRET_KEY,
                self._meta,
                "ava",
            ],
            {},
        )

    def mount(self, volume: Mapping[str, Any], scaled: Mapping[str, str]) -> Path:
        """Mount a PersistentVolume as its driver does, with other values of some options; return its directory.

        Raises StartError.
        """
        name = volume["metadata"]["name"]
        spec = volume["spec"]
        at = self.folder / "mnt" / name
        at.mkdir(parents=True, exist_ok=True)
        options = [self._scaled(option, scaled) for option in spec["mountOptions"]]
        if spec["accessModes"] == ["ReadOnlyMany"]:
            options.insert(0, "ro")
        options.append(f"metrics=127.0.0.1:{process.free_port()}")
        command = [str(self._binary / "mount.juicefs"), self._meta, str(at), "-o", ",".join(options)]
        self._spawn(name, [*self._enter(), *command])
        view = self._inside(at)
        self._wait(name, lambda: _mounted(view))
        return view

    def run(self, container: Mapping[str, Any], scripts: Mapping[str, str], volume: str) -> str:
        """Run a container's command on a mounted volume; return what it prints. Raises CalledProcessError."""
        root = self.folder / "mnt" / volume
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (config / name).write_text(text.replace("/volume", str(root)).replace("sleep 10", "sleep 0.5"))
        command = [word.replace("/config/", f"{config}/") for word in container["command"]]
        secrets = {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY}
        environment = {
            each["name"]: secrets[each["valueFrom"]["secretKeyRef"]["key"]] for each in container.get("env", ())
        }
        return self._execute(command, environment)

    def log(self, name: str) -> Path:
        """Log of a mount, by the name of its volume."""
        return self.folder / f"{name}.log"

    def start(self, name: str) -> None:
        """Processes start with `mount`."""
        raise NotImplementedError

    def close(self) -> None:
        """End all processes and remove all files."""
        for name in reversed(list(self._processes)):
            self.kill(name)
        self._owned.remove()

    def _scaled(self, option: str, scaled: Mapping[str, str]) -> str:
        name, equals, value = option.partition("=")
        for directory, own in self._directories.items():
            if value.startswith(f"{directory}/"):
                value = f"{own}{value.removeprefix(directory)}"
        return f"{name}{equals}{scaled.get(name, value)}"

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self._binary}:{os.environ['PATH']}", "HOME": str(self.folder), "JFS_FOREGROUND": "1"}

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        self._processes[name] = process.spawn(command, self.log(name), self._environment())

    def _execute(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        done = subprocess.run(
            [*self._enter(), *command],
            env={**self._environment(), **environment},
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT * 5,
        )
        with (self.folder / "commands.log").open("a") as log:
            log.write(done.stdout)
        if done.returncode:
            raise StartError(f"{command}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def _enter(self) -> list[str]:
        return [_tool("nsenter"), "--target", str(self.pid("machine")), "--mount"]

    def _inside(self, path: Path) -> Path:
        return Path(f"/proc/{self.pid('machine')}/root{path}")

    def _wait(self, name: str, ready: Any) -> None:
        deadline = time.monotonic() + patience(TIMEOUT)
        while not ready():
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise StartError(f"{name} did not start:\n{process.tail(self.log(name), 30)}")
            time.sleep(POLL)


def _mounted(path: Path) -> bool:
    try:
        return path.stat().st_dev != path.parent.stat().st_dev and path.stat().st_ino == 1
    except OSError:
        return False


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UnavailableError(f"no {name} on PATH")
    return found
