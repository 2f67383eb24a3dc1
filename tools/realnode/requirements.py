"""Requirements of a real node on the machine that it runs on."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.controlplane import UnavailableError
from tools.programs import require_programs

CNI_PLUGINS = Path("/usr/lib/cni")
PROGRAMS = ("containerd", "runc", f"{CNI_PLUGINS}/ptp", "iptables", "ip", "nsenter", "openssl", "gcc", "dpkg-deb")

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""Cgroup controllers without which the kubelet does not start."""


def check() -> None:
    """Raise UnavailableError, with all missing packages, if this machine cannot run a node."""
    if obstacle := find_obstacle():
        raise UnavailableError(f"real node unavailable: {obstacle}")
    require_programs(*PROGRAMS, purpose="real node")


def find_obstacle() -> str | None:
    """Return why no package would let this machine run a node: its system, this user, or the kernel."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        return "it is made of Debian packages, so Debian is needed"
    if os.geteuid() != 0:
        return "it needs root"
    if shutil.which("unshare") is not None and (refusal := _probe_namespaces()):  # otherwise, a package has it
        return f"no namespaces: {refusal}"
    controllers: set[str] = set()
    try:
        for hierarchy, options in _read_cgroup_mounts():
            Path(tempfile.mkdtemp(prefix="avactl-probe-", dir=hierarchy)).rmdir()
            delegated = hierarchy / "cgroup.subtree_control"  # version 2
            controllers |= set(delegated.read_text().split() if delegated.exists() else options)
    except OSError as error:
        return f"no cgroups: {error}"
    missing = [controller for controller in CONTROLLERS if controller not in controllers]
    return f"no cgroups for {', '.join(missing)}" if missing else None


def _probe_namespaces() -> str:
    """Return why the kernel refuses the namespaces of a node, or a mount in them; "" if it does not."""
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    return probe.stderr.strip() if probe.returncode else ""


def find_cgroup_hierarchies() -> list[Path]:
    """Return the mounted cgroup hierarchies, of version 1 and 2: machines can have both."""
    return [hierarchy for hierarchy, _ in _read_cgroup_mounts()]


def _read_cgroup_mounts() -> list[tuple[Path, list[str]]]:
    """Return the cgroup hierarchies and their mount options, which name the controllers of version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(Path(place), options.split(",")) for _, place, kind, options, *_ in mounts if kind.startswith("cgroup")]
