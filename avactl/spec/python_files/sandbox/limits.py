"""Resource limits of the sandboxed process: CPU time, memory, file size, processes. Source: setrlimit(2)."""

from __future__ import annotations

import resource
import sys

MEMORY = 1 << 30
"""Address space of the process, in bytes."""


def apply(seconds: float) -> bool:
    """Lower the limits permanently, with `seconds` of CPU time; False if the kernel refused one of them.

    A lower hard limit stays. Without capabilities no hard limit can be raised again.
    """
    wanted = {
        "CPU": int(seconds) + 1,
        "AS": MEMORY,
        "DATA": MEMORY,
        "NOFILE": 64,
        "FSIZE": 0,
        "NPROC": 0,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "RTPRIO": 0,
    }
    complete = True
    for name, value in wanted.items():
        limit = getattr(resource, f"RLIMIT_{name}", None)
        if limit is None:
            complete = complete and sys.platform != "linux"
            continue
        hard = resource.getrlimit(limit)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(limit, (lowered, lowered))
        except (OSError, ValueError):
            complete = False  # macOS does not support every limit
    return complete
