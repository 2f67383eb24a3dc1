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
    if shutil.which("unshare") is None:
        return None  # a package has it
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no namespaces: {probe.stderr.strip()}"
    hierarchies = find_cgroup_hierarchies()
    try:
        for hierarchy in hierarchies:
            Path(tempfile.mkdtemp(prefix="avactl-probe-", dir=hierarchy)).rmdir()
    except OSError as error:
        return f"no cgroups: {error}"
    return None if hierarchies else "no cgroups are mounted"


def find_cgroup_hierarchies() -> list[Path]:
    """Return the mounted cgroup hierarchies, of version 1 and 2: machines can have both."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]
