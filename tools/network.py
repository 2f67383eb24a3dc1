"""A network of one's own for a program: addresses that only its processes have, and no way out."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

from tools.controlplane import UnavailableError

MARK = "AVACTL_OWN_NETWORK"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR = 0x8913, 0x8914, 0x8916
_IFF_UP = 1


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run `python -m module` anew in a network namespace whose loopback device has all of 10.0.0.0/8.

    Endpoints of Services cannot be in 127.0.0.0/8. Returns at once in the new process; in the old one, never. What has
    to be downloaded must be there before. Raises UnavailableError on a machine without such namespaces.
    """
    if os.environ.get(MARK):
        _loopback("10.0.0.1")
        return
    command = [*require(), sys.executable, "-m", module, *arguments]
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, MARK: "1"})


def require() -> list[str]:
    """Return the command that runs another one in a network namespace. Raises UnavailableError without them."""
    program = shutil.which("unshare")
    if sys.platform != "linux" or program is None:
        raise UnavailableError("network namespaces unavailable: they need Linux and `unshare` of util-linux")
    command = [program, "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--"]
    tried = subprocess.run(
        [*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if tried.returncode:
        raise UnavailableError(f"network namespaces unavailable: {tried.stderr.strip()}")
    return command


def _loopback(address: str) -> None:
    """Start the loopback device, and give it an address with the network of its class."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            request = struct.pack("16sH14x", b"lo", 0)
            (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
            named = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, _SIOCSIFADDR, named)
        except OSError as error:
            raise UnavailableError(f"network namespaces unavailable: {error}") from None
