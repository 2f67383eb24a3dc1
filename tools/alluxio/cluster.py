"""Starts an Alluxio cluster on loopback with given properties."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx

from tools.alluxio.build import build_class_archive, build_jars, java
from tools.alluxio.components import COMMON, COMPONENTS, classpath, fuse_script, properties, shell_script
from tools.controlplane import StartError, process
from tools.controlplane.folder import OwnedFolder
from tools.waiting import patience

START_TIMEOUT = 240.0  # seconds
DUMP = 2.0  # seconds, for a dump of all threads
DUMP_LINES = 40_000
_IDLE = re.compile(r'"(?:master-rpc-executor|grpc-default|alluxio-client-netty)[^"]*" .*?\n\n', re.DOTALL)
"""Threads of a dump of which there are hundreds, and which tell nothing."""
SHELL_TIMEOUT = 300.0  # seconds
PORT_ATTEMPTS = 3
POLL = 0.1  # seconds
LOG_LINES = 30  # of a process that did not start, in the exception
WRITER = Path(__file__).with_name("Writer.java")
"""A program for `Alluxio.java`."""
RAM = "/dev/shm"
RAM_LEAST = 1024**3  # bytes; where containers run, it often has 64 MB

_LOCAL = re.compile(
    r"alluxio\.worker\.tieredstore\.level\d+\.dirs\.path|alluxio\.master\.(journal\.folder|metastore\.dir)"
)
"""Properties with directories of which each process has its own, as each container has."""

LOGGING = """\
log4j.rootLogger=INFO, Console
log4j.appender.Console=org.apache.log4j.ConsoleAppender
log4j.appender.Console.layout=org.apache.log4j.PatternLayout
log4j.appender.Console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n
"""


SHELL_LOGGING = LOGGING.replace("INFO", "WARN").replace("%n", "%n\nlog4j.appender.Console.target=System.err")
"""Of shells, whose output is for people and scripts."""


class CommandError(Exception):
    """A shell command or script failed; the message has its output."""


class Alluxio(process.Processes):
    """Masters, workers and their job services, in a `with` block. At its end nothing is left of them.

    Processes are named as pods are: `master-0`, `job-master-0`, `worker-0`, `job-worker-0`, … Every worker has a host
    address of its own (127.0.0.11, …), because Alluxio takes workers with the same host for one machine.

    Entering raises UnavailableError without Java or Maven, BuildError, and StartError.
    """

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        *,
        masters: int = 1,
        workers: int = 2,
        jobs: bool = True,
        logging: str = LOGGING,
        options: Mapping[str, Sequence[str]] | None = None,
        as_pods: bool = False,
    ) -> None:
        """`values` are the properties of all processes.

        Only ports, addresses and directories of them are replaced: each process has its own below `folder`, MEM levels
        below /dev/shm if there is room. `options` are more of Java's options by kind of process (`master`, `worker`,
        `job-master`, `job-worker`, `shell`, `fuse`), `logging` is the text of log4j.properties. `as_pods`: workers
        advertise the address that the process has besides their host's; here they have the same one.
        """
        super().__init__()
        self._values = dict(values or {})
        self._kinds = {"master": masters, "job-master": masters * jobs, "worker": workers, "job-worker": workers * jobs}
        self._logging, self._options, self._as_pods = logging, dict(options or {}), as_pods
        self._ports: dict[str, dict[str, int]] = {}
        self._folders: list[OwnedFolder] = []

    # -- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._java, self._jars = java(), build_jars()
        self._common = [*COMMON, f"-XX:SharedArchiveFile={build_class_archive()}"]
        try:
            for attempt in range(PORT_ATTEMPTS):
                self._folders = [OwnedFolder()]
                if Path(RAM).is_dir() and shutil.disk_usage(RAM).free > RAM_LEAST:
                    self._folders.append(OwnedFolder(Path(RAM)))
                self._write()
                try:
                    self.start(*self.names)
                    break
                except StartError as failure:
                    # Another process can take a port between its choice and its use.
                    if "Address already in use" not in str(failure) or attempt == PORT_ATTEMPTS - 1:
                        raise
                    self.close()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all processes and remove all files. Closing twice is fine."""
        for name in list(self._processes):
            self.kill(name)
        for folder in self._folders:
            folder.remove()
        self._folders = []
        self._ports = {}

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of all processes, in starting order."""
        return [f"{kind}-{index}" for kind, count in self._kinds.items() for index in range(count)]

    @property
    def folder(self) -> Path:
        """The folder with everything but MEM levels. Raises RuntimeError outside of the `with` block."""
        if not self._folders:
            raise RuntimeError("the cluster is not running: use it in a `with` block")
        return self._folders[0].path

    @property
    def site(self) -> Path:
        """The `alluxio-site.properties` that all processes read."""
        return self.folder / "conf" / "alluxio-site.properties"

    @property
    def shell(self) -> Path:
        """A `bin/alluxio` for this cluster."""
        return self.folder / "bin" / "alluxio"

    @property
    def masters(self) -> list[str]:
        """Addresses of the masters: `127.0.0.1:PORT`."""
        return self._addresses("master", "rpc")

    @property
    def job_masters(self) -> list[str]:
        """Addresses of the job masters."""
        return self._addresses("job-master", "rpc")

    def port(self, name: str, port: str = "rpc") -> int:
        """A port of a process: `rpc`, `web`, `journal` or `data`. Restarts do not change it."""
        return self._ports[name][port]

    def host(self, name: str) -> str:
        """The host address that a process advertises."""
        kind, index = _split(name)
        return f"127.0.0.{11 + index}" if "worker" in kind else "127.0.0.1"

    def log(self, name: str) -> Path:
        """The file with the output of a process, over all its restarts."""
        return self.folder / f"{name}.log"

    def directory(self, name: str, path: str) -> Path:
        """The directory that stands for `path` of the properties in one process."""
        own = next((value for key, value in self._own(name).items() if self._values.get(key) == path), None)
        if own is None:
            raise KeyError(f"no property of {name} has the value {path}")
        return Path(own)

    def info(self, path: str = "/api/v1/master/info/") -> Any:
        """What the primary master tells over HTTP. Raises httpx.HTTPError if none answers."""
        error: httpx.HTTPError = httpx.ConnectError("no master")
        for index in range(self._kinds["master"]):
            try:
                reply = httpx.get(
                    f"http://127.0.0.1:{self.port(f'master-{index}', 'web')}{path}",
                    trust_env=False,
                    timeout=patience(30),
                )
                return reply.raise_for_status().json()
            except httpx.HTTPError as failure:
                error = failure
        raise error

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start processes that do not run, with the data and ports of before, and wait until they are ready.

        Raises StartError, and ValueError if one runs already.
        """
        if running := [name for name in names if name in self._processes]:
            raise ValueError(f"{', '.join(running)}: already running")
        for name in names:
            kind, _ = _split(name)
            component, own = COMPONENTS[kind], self._own(name)
            for path in (own[key] for key in own if _LOCAL.fullmatch(key)):
                # A volume is there before its container.
                Path(path).mkdir(parents=True, exist_ok=True)
            options = [*self._common, *component.options, *self._options.get(kind, ()), *properties(own)]
            self.spawn(name, [self._java, "-cp", classpath(self._jars), *options, component.main])
        deadline = time.monotonic() + patience(START_TIMEOUT)
        for name in names:
            while not self._ready(name):
                self._check(name, deadline)
                time.sleep(POLL)

    def spawn(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start another process that ends with the cluster; `log`, `kill` and `pid` know it by its name."""
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)}
        child = process.spawn(command, self.log(name), {**base, **(environment or {})}, cwd=self.folder)
        self._processes[name] = child

    def running(self, name: str) -> bool:
        """Return True if a process was started and did not end."""
        child = self._processes.get(name)
        return child is not None and child.poll() is None

    # -- commands --------------------------------------------------------------------------------------------------

    def fs(self, *arguments: str) -> str:
        """Run `alluxio fs …`; return its output. Raises CommandError."""
        return self.run([self.shell, "fs", *arguments])

    def fsadmin(self, *arguments: str) -> str:
        """Run `alluxio fsadmin …`; return its output. Raises CommandError."""
        return self.run([self.shell, "fsadmin", *arguments])

    def script(self, text: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a script of a tier's ConfigMap with this cluster's `bin/alluxio`; return its output.

        Raises CommandError.
        """
        text = text.replace("/opt/alluxio/bin/alluxio", str(self.shell))
        return self.run(["bash", "-c", text, "script", *arguments], environment)

    def java(self, source: Path, *arguments: str) -> list[str | Path]:
        """Return a command that runs a program in Java, a source file, as a client of this cluster. It needs a JDK."""
        options = [*self._common, "-Xmx256m", *properties(self._home("log4j-shell"))]
        return [self._java, "-cp", classpath(self._jars), *options, source, *arguments]

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
        """Run a command to its end; return its output. Raises CommandError."""
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SHELL_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            words = " ".join(map(str, command[:1] if command[0] == "bash" else command))
            raise CommandError(f"{words} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    # -- configuration ---------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Choose ports, and write the configuration."""
        self._ports = {name: {} for name in self.names}
        taken: set[int] = set()
        for name in self.names:
            for port in COMPONENTS[_split(name)[0]].ports:
                while (number := process.free_port()) in taken:
                    pass
                taken.add(number)
                self._ports[name][port] = number
        for name in ("conf", "bin", "logs", "sockets", "underFSStorage"):
            (self.folder / name).mkdir()
        self.site.write_text("".join(f"{key}={value}\n" for key, value in self._site().items()))
        (self.folder / "conf" / "log4j.properties").write_text(self._logging)
        (self.folder / "conf" / "log4j-shell.properties").write_text(SHELL_LOGGING)
        shell = [*self._common, "-Xmx256m", *self._options.get("shell", ()), *properties(self._home("log4j-shell"))]
        fuse = [*self._common, *self._options.get("fuse", ()), *properties(self._home())]
        for path, text in (
            (self.shell, shell_script(self._java, self._jars, self.folder, shell)),
            (self.folder / "entrypoint.sh", fuse_script(self._java, self._jars, fuse)),
        ):
            path.write_text(text)
            path.chmod(0o755)

    def _site(self) -> dict[str, str]:
        """All properties, with the addresses and shared directories of this cluster."""
        result = dict(self._values)
        if self._kinds["master"] == 1:
            result["alluxio.master.hostname"] = "127.0.0.1"
        for kind, prefix in (("master", "alluxio.master"), ("job-master", "alluxio.job.master")):
            if self._kinds[kind]:
                result[f"{prefix}.rpc.addresses"] = ",".join(self._addresses(kind, "rpc"))
                result[f"{prefix}.embedded.journal.addresses"] = ",".join(self._addresses(kind, "journal"))
        result["alluxio.master.journal.type"] = "EMBEDDED"
        socket = "alluxio.worker.data.server.domain.socket.address"
        if socket in result:
            result[socket] = str(self.folder / "sockets")
        mount = "alluxio.fuse.mount.point"
        if mount in result:
            result[mount] = str(self.folder / "mnt" / Path(result[mount]).name)
        return result

    def _home(self, logging: str = "log4j") -> dict[str, str]:
        conf = self.folder / "conf"
        return {
            "alluxio.home": str(self.folder),
            "alluxio.conf.dir": str(conf),
            "alluxio.logs.dir": str(self.folder / "logs"),
            "alluxio.user.hostname": "127.0.0.1",
            "log4j.configuration": f"file:{conf / logging}.properties",
        }

    def _own(self, name: str) -> dict[str, str]:
        """Properties that one process has for itself."""
        kind, _ = _split(name)
        component = COMPONENTS[kind]
        result = {**self._home(), **{key: str(self._ports[name][port]) for port, key in component.ports.items()}}
        if "worker" in kind:
            result["alluxio.worker.hostname"] = self.host(name)
            if self._as_pods:
                result["alluxio.worker.container.hostname"] = _own_address()
        root = self.folder / name
        if "master" in kind:
            result["alluxio.master.hostname"] = self.host(name)
            result["alluxio.master.journal.folder"] = f"{root}/journal"
        for key, value in self._values.items():
            if _LOCAL.fullmatch(key):
                medium = self._values.get(key.replace(".path", ".mediumtype"))
                base = self._folders[-1].path / name if medium == "MEM" else root
                result[key] = f"{base}{value}"
        return result

    def _addresses(self, kind: str, port: str) -> list[str]:
        return [f"127.0.0.1:{self.port(f'{kind}-{index}', port)}" for index in range(self._kinds[kind])]

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _check(self, name: str, deadline: float) -> None:
        child = self._processes[name]
        if child.poll() is not None:
            said, lines = f"ended with status {child.returncode} while it started", LOG_LINES
        elif time.monotonic() > deadline:
            # Java then writes what each thread does.
            child.send_signal(signal.SIGQUIT)
            time.sleep(DUMP)
            said, lines = f"was not ready in {START_TIMEOUT:.0f} s", DUMP_LINES
        else:
            return
        text = _IDLE.sub("", process.tail(self.log(name), lines))
        raise StartError(f"{name} {said}; the end of its log:\n{text}")

    def _ready(self, name: str) -> bool:
        kind, _ = _split(name)
        if kind == "worker":
            # It begins to serve this port once it is registered.
            return self._listens(name, "web")
        if kind == "job-worker":
            return self._listens(name, "rpc")
        # Of several masters only the primary has a client port.
        primary = any(self._listens(f"{kind}-{index}", "rpc") for index in range(self._kinds[kind]))
        return primary and self._listens(name, "journal") and (kind != "master" or self._informs())

    def _listens(self, name: str, port: str) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port(name, port))) == 0

    def _informs(self) -> bool:
        try:
            self.info()
        except httpx.HTTPError:
            return False
        return True


@cache
def _own_address() -> str:
    """The machine's address: where Alluxio takes it for its own, a worker reads from the store by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Nothing is sent.
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _split(name: str) -> tuple[str, int]:
    kind, _, index = name.rpartition("-")
    return kind, int(index)
