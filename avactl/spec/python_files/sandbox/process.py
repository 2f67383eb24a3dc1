"""Privileges of the sandboxed process: namespaces, capabilities, parent-death signal. Linux only.

Sources: unshare(2), capabilities(7), prctl(2).
"""

from __future__ import annotations

import os
import struct
from typing import Any

_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_SIGKILL = 9
_CAPABILITY_VERSION_3 = 0x20080522


def enter_namespaces(libc: Any) -> bool:
    """Enter new user, network and IPC namespaces. Containers often forbid it, so it is optional.

    seccomp refuses sockets and shared memory in any case.
    """
    return bool(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0)


def drop_privileges(ctypes: Any, libc: Any, parent: int) -> bool:
    """Drop all capabilities, prevent regaining them by exec, die with the parent and disable debuggers.

    Call it after `namespaces`: a change of credentials resets the death signal and the dumpable flag.
    """
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    dropped = libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(data)) == 0
    done = [
        libc.prctl(option, value, 0, 0, 0) == 0
        for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0), (_PR_SET_PDEATHSIG, _SIGKILL))
    ]
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the death signal was set
    return dropped and all(done)
