"""Runs as `python trampoline.py PARENT COMMAND...`: becomes COMMAND, tied to the life of its parent process.

A program of its own, and not a `preexec_fn`: code between fork and exec can deadlock in a parent with threads.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for a SIGKILL at the parent's death, then become the command; exits 1 if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        # The parent died before the request above, so no signal will ever come.
        sys.exit(1)
    _keep_niceness()
    os.execv(sys.argv[2], sys.argv[2:])


def _keep_niceness() -> None:
    """Give this session the niceness of the process: Linux may weigh sessions, and a new one has the usual weight."""
    if niceness := os.nice(0):
        with suppress(OSError):
            os.write(os.open("/proc/self/autogroup", os.O_WRONLY), str(niceness).encode())


main()
