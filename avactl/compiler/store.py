"""Results between runs, on disk: one file a repository, thrown away whenever anything about it is in doubt.

Content is `marshal` of plain data: it is read several times faster than JSON and, unlike pickle, runs no code. Its
format is that of one version of Python, which is part of the name, as are avactl's own sources and the libraries that
it parses and checks with. A file is written aside and renamed, so that readers and a kill never meet half of one.
"""

from __future__ import annotations

import marshal
import os
import sys
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from typing import Any
from zlib import crc32

_MAGIC = b"avactl-1\n"
_LIBRARIES = ("pydantic", "pydantic_core", "yaml", "orjson")
_MOST = 64
"""Most files that are kept: of repositories that are gone, too."""


def directory() -> str:
    """Where results are kept: AVACTL_CACHE_DIR, or `avactl` in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("AVACTL_CACHE_DIR")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "avactl")


def _stamp(path: str) -> tuple[int, int, int]:
    about = os.stat(path)
    return about.st_ino, about.st_size, about.st_mtime_ns


def _sources(folder: str) -> list[Any]:
    found: list[Any] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    found.append((entry.name, _sources(entry.path)))
            else:
                about = entry.stat()
                found.append((entry.name, about.st_ino, about.st_size, about.st_mtime_ns))
    return found


def _version() -> str:
    """What results depend on beside the repository: Python, avactl's sources, the libraries."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = [sys.version, _sources(package)]
    for name in _LIBRARIES:
        spec = find_spec(name)
        found.append((name, _stamp(spec.origin) if spec and spec.origin else None))
    return repr(found)


def _checksum(content: bytes | memoryview) -> bytes:
    # Against damage, not against people: nobody else can write into the folder.
    return crc32(content).to_bytes(4, "big")


class Store:
    """One value between runs. Never raises: without a usable file there is no value."""

    def __init__(self, area: str, key: str) -> None:
        """`area` names the kind of value, `key` what it is about."""
        self._folder = os.path.join(directory(), area)
        try:
            name = sha256("\0".join((key, _version())).encode("utf-8", "surrogateescape")).hexdigest()[:40]
        except OSError:
            name = ""
        self._path = os.path.join(self._folder, name) if name else ""

    def load(self) -> Any:
        """The value, or None."""
        try:
            if not self._path or not self._private():
                return None
            with open(self._path, "rb") as file:
                data = file.read()
            start = len(_MAGIC) + 4
            content = memoryview(data)[start:]
            if data[:start] != _MAGIC + _checksum(content):
                return None
            return marshal.loads(content)  # noqa: S302 - our own, and nobody else could write it
        except (OSError, ValueError, EOFError, TypeError):
            return None

    def save(self, value: Any) -> None:
        """Keep a value: dict, list, tuple, str, bytes, int, float, bool, None."""
        with suppress(OSError, ValueError):
            if not self._path:
                return
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not self._private():
                return
            content = marshal.dumps(value)
            aside = f"{self._path}.{os.getpid()}"
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
            try:
                with open(handle, "wb") as file:
                    file.write(_MAGIC + _checksum(content))
                    file.write(content)
                # Renamed over another file, ext4 would write the new one to the disk first.
                with suppress(OSError):
                    os.unlink(self._path)
                os.rename(aside, self._path)
            except BaseException:
                os.unlink(aside)
                raise
            self._prune()

    def _private(self) -> bool:
        """Whether nobody else can have written what is in the folder."""
        about = os.stat(self._folder)
        return about.st_uid == os.geteuid() and not about.st_mode & 0o022

    def _prune(self) -> None:
        with os.scandir(self._folder) as entries:
            files = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in entries]
        for _, path in sorted(files)[:-_MOST]:
            with suppress(OSError):
                os.unlink(path)
