"""Replace a directory atomically, so that readers see either the old or the new version.

Linux exchanges two names in one system call (`renameat2` with RENAME_EXCHANGE) on all common file systems. Elsewhere
the old directory is renamed away and the new one renamed in: for some microseconds neither exists, and a process
killed at that moment leaves the old one under its temporary name, which the next run restores.

The temporary names are hidden siblings of the directory: `.NAME.avactl-new`, `.NAME.avactl-old`. There is no
protection against power failures, because the output can be rendered again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RENAME_EXCHANGE = 2  # RENAME_EXCHANGE, linux/fs.h
_AT_FDCWD = -100  # AT_FDCWD
_UNSUPPORTED_ERRORS = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def new_name(directory: str) -> str:
    """Return the path at which the next version of a directory is built."""
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{name}.avactl-new")


def _old_name(directory: str) -> str:
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{name}.avactl-old")


def remove(directory: str) -> None:
    """Delete a directory of ours, or a file of that name. Raises OSError if something remains."""
    if os.path.islink(directory) or os.path.isfile(directory):
        os.unlink(directory)
    elif os.path.isdir(directory):
        shutil.rmtree(directory)


@contextmanager
def lock_parent(parent: str) -> Iterator[None]:
    """Serialise renders with a lock on the parent directory itself, which leaves no lock file.

    On file systems without directory locks (NFS), there is no lock.
    """
    import fcntl

    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def recover_swap(directory: str) -> None:
    """Complete or undo the work of a killed run. Requires the lock."""
    old = _old_name(directory)
    if os.path.isdir(old) and not os.path.lexists(directory):
        os.rename(old, directory)
    remove(old)
    remove(new_name(directory))


def exchange_names(one: str, other: str) -> bool:
    """Exchange two names atomically; False if the system or file system does not support it. Raises OSError."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED_ERRORS:
        return False
    raise OSError(code, os.strerror(code), other)


def replace_directory(directory: str) -> None:
    """Move `new_name(directory)` into place without an atomic exchange. Requires the lock."""
    old = _old_name(directory)
    os.rename(directory, old)
    os.rename(new_name(directory), directory)
    remove(old)
