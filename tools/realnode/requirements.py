"""What a real node needs of the machine that it runs on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.controlplane import UnavailableError

CNI_PLUGINS = Path("/usr/lib/cni")
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "gcc": "gcc",
    "dpkg-deb": "dpkg",
}
"""Debian's package of each program."""


def check() -> None:
    """Raise UnavailableError, with all missing packages, if this machine cannot run a node."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        raise UnavailableError("real node unavailable: it is made of Debian packages, so Debian is needed")
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing:
        raise UnavailableError(f"real node unavailable: run `apt-get install {' '.join(missing)}`")
    if os.geteuid() != 0:
        raise UnavailableError("real node unavailable: it needs root")
    probe = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        raise UnavailableError(f"real node unavailable: {probe.stderr.strip()}")
