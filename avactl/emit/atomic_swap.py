"""A directory takes another one's place in one step, so that readers see the old or the new one and nothing between.

Linux swaps two names in one system call (`renameat2` with RENAME_EXCHANGE) on all its usual file systems. Elsewhere the
old directory is renamed away and the new one renamed in: between the two there is none at all for some microseconds,
and a process killed there leaves the old one beside, which the next run puts back.

New and old stand beside the directory, hidden, named after it: `.NAME.avactl-new`, `.NAME.avactl-old`. Power failures
are not looked at: what is written can be rendered again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_EXCHANGE = 2  # RENAME_EXCHANGE, linux/fs.h
_HERE = -100  # AT_FDCWD
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def new_name(directory: str) -> str:
    """Where the next version of a directory is built."""
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{name}.avactl-new")


def _old_name(directory: str) -> str:
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{name}.avactl-old")


def remove(directory: str) -> None:
    """Delete a directory of ours, or what stands under its name. Raises OSError if something is left."""
    if os.path.islink(directory) or os.path.isfile(directory):
        os.unlink(directory)
    elif os.path.isdir(directory):
        shutil.rmtree(directory)


@contextmanager
def locked(parent: str) -> Iterator[None]:
    """One render at a time beside one another: a lock on the parent directory itself, which leaves no file behind.

    Where the file system has no locks for directories (NFS), there is none.
    """
    import fcntl

    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def recover(directory: str) -> None:
    """Finish or undo what a killed run left beside the directory. The lock is held."""
    old = _old_name(directory)
    if os.path.isdir(old) and not os.path.lexists(directory):
        os.rename(old, directory)
    remove(old)
    remove(new_name(directory))


def exchange(one: str, other: str) -> bool:
    """Swap two names in one step. False where the system or the file system cannot. Raises OSError."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), other)


def replace(directory: str) -> None:
    """Put `new_name(directory)` in the directory's place, where no exchange is to be had. The lock is held."""
    old = _old_name(directory)
    os.rename(directory, old)
    os.rename(new_name(directory), directory)
    remove(old)
