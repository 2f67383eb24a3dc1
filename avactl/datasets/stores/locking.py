"""Locks of local targets."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from avactl.datasets.errors import ArgumentError, ObjectStoreError
from avactl.datasets.stores.locations import StoreLocation


@contextmanager
def lock_target(target: StoreLocation, does: str) -> Iterator[None]:
    """Create a local target and keep other runs out of it, where its file system has locks.

    `does` is the verb of the message, such as `packs into`. Raises ArgumentError if another run holds it, StoreError.
    """
    if target.scheme != "file":
        yield
        return
    try:
        Path(target.path).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ObjectStoreError(f"{target}: {(error.strerror or str(error)).lower()}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise ArgumentError(f"another run {does} {target}", "wait for it, or name another target") from None
        yield
    finally:
        os.close(descriptor)
