"""Alluxio's processes: main classes, ports, and Java's options for them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Component(NamedTuple):
    """One kind of process."""

    main: str
    ports: Mapping[str, str]
    """Name of a port → its property."""
    options: tuple[str, ...]
    """Java's options: small heaps, and the serial collector, because a test machine has few cores."""


COMPONENTS: Mapping[str, Component] = {
    "master": Component(
        "alluxio.master.AlluxioMaster",
        {
            "rpc": "alluxio.master.rpc.port",
            "web": "alluxio.master.web.port",
            "journal": "alluxio.master.embedded.journal.port",
        },
        ("-Xmx320m",),
    ),
    "job-master": Component(
        "alluxio.master.AlluxioJobMaster",
        {
            "rpc": "alluxio.job.master.rpc.port",
            "web": "alluxio.job.master.web.port",
            "journal": "alluxio.job.master.embedded.journal.port",
        },
        ("-Xmx160m",),
    ),
    "worker": Component(
        "alluxio.worker.AlluxioWorker",
        {"rpc": "alluxio.worker.rpc.port", "web": "alluxio.worker.web.port"},
        ("-Xmx320m", "-XX:MaxDirectMemorySize=512m"),
    ),
    "job-worker": Component(
        "alluxio.worker.AlluxioJobWorker",
        {
            "rpc": "alluxio.job.worker.rpc.port",
            "data": "alluxio.job.worker.data.port",
            "web": "alluxio.job.worker.web.port",
        },
        ("-Xmx160m", "-XX:MaxDirectMemorySize=256m"),
    ),
}

SHELLS = {
    "fs": "alluxio.cli.fs.FileSystemShell",
    "fsadmin": "alluxio.cli.fsadmin.FileSystemAdminShell",
    "job": "alluxio.cli.job.JobShell",
    "getConf": "alluxio.cli.GetConf",
}
"""Commands of `bin/alluxio`, and their main classes."""

_OPENED = ("java.lang", "java.util", "java.nio", "sun.nio.ch", "java.lang.reflect")
COMMON = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)


def classpath(jars: Path) -> str:
    """Return Java's class path."""
    return f"{jars}/*"


def properties(values: Mapping[str, str]) -> list[str]:
    """Return properties as options of Java."""
    return [f"-D{key}={value}" for key, value in values.items()]


def shell_script(java: str, jars: Path, home: Path, options: Sequence[str]) -> str:
    """Return a `bin/alluxio` for the cluster in `home`: what the image's own does for its shells."""
    cases = "\n".join(f"  {command}) class={main} ;;" for command, main in SHELLS.items())
    return f"""\
#!/bin/bash
set -eu
case "${{1:-}}" in
{cases}
  *) echo "unknown command: ${{1:-}}" >&2; exit 1 ;;
esac
shift
options=() words=()
for word in "$@"; do
  case "$word" in
    -D*) options+=("$word") ;;
    *) words+=("$word") ;;
  esac
done
exec {java} -cp '{classpath(jars)}' {" ".join(options)} ${{ALLUXIO_USER_JAVA_OPTS:-}} \\
  ${{options[@]+"${{options[@]}}"}} "$class" ${{words[@]+"${{words[@]}}"}}
"""


def fuse_script(java: str, jars: Path, options: Sequence[str]) -> str:
    """Return an `entrypoint.sh` that knows `fuse --fuse-opts=OPTIONS MOUNT_POINT PATH`, as the image's does."""
    return f"""\
#!/bin/bash
set -eu
[ "$1" = fuse ] || {{ echo "unknown command: $1" >&2; exit 1; }}
exec {java} -cp '{classpath(jars)}' {" ".join(options)} ${{ALLUXIO_FUSE_JAVA_OPTS:-}} \\
  alluxio.fuse.AlluxioFuse -o "${{2#--fuse-opts=}}" -m "$3" -a "$4"
"""
