"""What a machine needs so that a process can mount with FUSE in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.controlplane import UnavailableError


def require_fuse(*programs: str) -> None:
    """Raise UnavailableError, with one line, if this process cannot mount so, or one of these programs is missing."""
    reason = None
    if not Path("/dev/fuse").exists():
        reason = "no /dev/fuse"
    elif os.geteuid() != 0:
        reason = "mounting in a namespace needs root"
    elif missing := [name for name in ("unshare", "nsenter", *programs) if shutil.which(name) is None]:
        reason = f"no {missing[0]} on PATH"
    if reason:
        raise UnavailableError(f"FUSE unavailable: {reason}")
