"""The name of this process among the replicas of a daemon."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path


def pod_name() -> str:
    """Return the pod's name (`POD_NAME`), or the machine's where there is no pod."""
    return os.environ.get("POD_NAME") or os.uname().nodename


def new_identity() -> str:
    """Return a lease holder's identity, another one for each call, as client-go's."""
    return f"{pod_name()}_{uuid.uuid4().hex[:8]}"


def process_identity() -> str:
    """Return a lease holder's identity that tells `is_dead` which process it is.

    It consists of machine and boot, PID namespace, PID and start time.
    """
    pid = os.getpid()
    return f"{os.uname().nodename}_{_pid_namespace()}_{pid}_{_start_ticks(pid)}_{uuid.uuid4().hex[:6]}"


def is_dead(identity: str) -> bool:
    """Return True if a `process_identity` is of a process of this machine that has exited; False in any doubt."""
    parts = identity.split("_")
    if len(parts) < 5 or not parts[-4] or parts[-4] != _pid_namespace():
        return False
    if not re.fullmatch(r"[1-9][0-9]{0,9}", parts[-3]):
        return False
    pid = int(parts[-3])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it is another user's
    # /proc may hide the processes of other users (hidepid): only another start time proves that the number was reused.
    ticks = _start_ticks(pid)
    return bool(ticks and parts[-2]) and ticks != parts[-2]


def _pid_namespace() -> str:
    """Return the machine's boot ID and PID namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - the link is not to be resolved
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
