"""Landlock: kernel filter for file access, TCP ports, abstract sockets and signals. Source: landlock(7)."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3

# Rights that a ruleset handles, by the ABI that introduced them: execute to make_sym; refer; truncate; ioctl.
_FS_RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
_NET_RIGHTS = ((4, 0b11),)  # bind_tcp, connect_tcp
_SCOPED_RIGHTS = ((6, 0b11),)  # abstract unix sockets, signals


def landlock_abi(libc: Any) -> int:
    """Return the Landlock ABI version of the kernel; 0 or less if unsupported or disabled."""
    return int(libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION))


def apply(ctypes: Any, libc: Any, readable: Sequence[str], listable: Sequence[str]) -> bool:
    """Allow only reading below `readable` and listing `listable`; False if the kernel does not support it."""
    version = landlock_abi(libc)
    if version < 1:
        return False
    handled = [
        sum(right for since, right in table if since <= version) for table in (_FS_RIGHTS, _NET_RIGHTS, _SCOPED_RIGHTS)
    ]
    # struct landlock_ruleset_attr; an older kernel accepts a longer one if the rest is zero.
    attributes = struct.pack("=3Q", *handled)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for path in readable:
        _add_rule(ctypes, libc, ruleset, path, _READ_FILE | _READ_DIR)
    for path in listable:
        _add_rule(ctypes, libc, ruleset, path, _READ_DIR)
    restricted = bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    os.close(ruleset)
    return restricted


def _add_rule(ctypes: Any, libc: Any, ruleset: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a library directory that does not exist on this system
    if not os.path.isdir(path):  # noqa: PTH112 - no pathlib in the sandbox
        rights &= _READ_FILE
    # struct landlock_path_beneath_attr is packed: u64 rights, s32 descriptor.
    rule = struct.pack("=Qi", rights, beneath)
    libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.c_char_p(rule), 0)
    os.close(beneath)
