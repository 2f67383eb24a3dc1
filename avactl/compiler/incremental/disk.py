"""Cache tables on disk between runs: one file per repository, discarded if it may be invalid.

The content is plain data in `marshal` format, which loads several times faster than JSON and, unlike pickle, runs no
code. The format depends on the Python version, so the file name includes it, along with avactl's sources and the
libraries used for parsing and validation.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import avactl
from avactl.base.directories import cache_directory

_MAGIC = b"avactl 1\n"
_LIBRARIES = ("pydantic", "pydantic_core", "yaml", "orjson")
_MAX_FILES = 64
"""Maximum number of cache files, including those of deleted repositories."""


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
    """Return the versions that results depend on: of Python, avactl's sources, and the libraries."""
    package = os.path.dirname(os.path.abspath(avactl.__file__))
    found = [sys.version, _sources(package)]
    for name in _LIBRARIES:
        spec = find_spec(name)
        found.append((name, _stamp(spec.origin) if spec and spec.origin else None))
    return repr(found)


Table = dict[Any, Any]
"""Plain data by plain keys: dict, list, tuple, frozenset, str, bytes, int, float, bool, None."""

Convert = Callable[[list[Table]], list[Table]]

_HEAD = struct.Struct(">QI")
_MAX_BLOCKS = 32


class ResultStore:
    """Tables cached between runs. Never raises: an unusable file counts as empty.

    A file begins with all tables; each run appends its changes, until a rewrite is cheaper. The checksum of a block
    includes that of the previous block, so reading stops before a damaged block, or one from a concurrent run, at the
    complete state of an earlier run. The checksum detects damage, not tampering: only the user can write to the
    directory.
    """

    def __init__(self, area: str, key: str) -> None:
        """`area` names the kind of value, `key` what it is about."""
        self._folder = os.path.join(cache_directory(), area)
        try:
            name = sha256("\0".join((key, _version())).encode("utf-8", "surrogateescape")).hexdigest()[:40]
        except OSError:
            name = ""
        self._path = os.path.join(self._folder, name) if name else ""
        self._loaded: list[Table] = []
        self._first = self._size = self._blocks = self._chain = 0

    def load(self, typed: Convert | None = None) -> list[Table]:
        """Return the tables, empty if there are none; do not change them. `typed` converts plain data to types."""
        try:
            if self._path and self._private():
                with open(self._path, "rb") as file:
                    self._loaded = self._parse(memoryview(file.read()))
                if typed and self._loaded:
                    self._loaded = typed(self._loaded)
        except (OSError, ValueError, EOFError, TypeError):
            self._loaded = []
        return self._loaded

    def _parse(self, data: memoryview) -> list[Table]:
        if data[: len(_MAGIC)] != _MAGIC:
            return []
        tables: list[Table] = []
        at, chain = len(_MAGIC), 0
        while at + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, at)
            content = data[at + _HEAD.size : at + _HEAD.size + length]
            chain = crc32(content, chain)
            if len(content) < length or chain != checksum:
                break
            at += _HEAD.size + length
            # One by one, marshal is several times faster: it looks for what is shared within a value.
            block = [marshal.loads(part) for part in marshal.loads(content)]  # noqa: S302 - our own
            if not tables:
                tables, self._first = block, at
            else:
                for table, (changed, gone) in zip(tables, block, strict=True):
                    table.update(changed)
                    for key in gone:
                        del table[key]
            self._size, self._chain = at, chain
            self._blocks += 1
        return tables

    def save(self, tables: list[Table], plain: Convert | None = None) -> None:
        """Write tables for the next run; only values that are not the loaded objects themselves are appended.

        `plain` converts types back to plain data.
        """
        plain = plain or list
        with suppress(OSError, ValueError):
            if not self._path:
                return
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not self._private():
                return
            if self._loaded and self._blocks < _MAX_BLOCKS:
                changed = plain([_changed(old, new) for old, new in zip(self._loaded, tables, strict=True)])
                gone = [list(old.keys() - new.keys()) for old, new in zip(self._loaded, tables, strict=True)]
                block = self._block(zip(changed, gone, strict=True), self._chain)
                # Another run may have appended meanwhile; then neither its block nor ours is worth a whole file.
                if self._size + len(block) < self._first * 1.25 and os.stat(self._path).st_size == self._size:
                    with open(self._path, "ab") as file:
                        file.write(block)
                    return
            self._write(_MAGIC + self._block(plain(tables), 0))
            self._prune()

    def _block(self, parts: Iterable[Any], chain: int) -> bytes:
        content = marshal.dumps([marshal.dumps(part) for part in parts])
        return _HEAD.pack(len(content), crc32(content, chain)) + content

    def _write(self, content: bytes) -> None:
        aside = f"{self._path}.{os.getpid()}"
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            with open(handle, "wb") as file:
                file.write(content)
            # Renamed over another file, ext4 would write the new one to the disk first.
            with suppress(OSError):
                os.unlink(self._path)
            os.rename(aside, self._path)
        except BaseException:
            os.unlink(aside)
            raise

    def _private(self) -> bool:
        """Return True if only the current user can have written the directory's content."""
        about = os.stat(self._folder)
        return about.st_uid == os.geteuid() and not about.st_mode & 0o022

    def _prune(self) -> None:
        with os.scandir(self._folder) as entries:
            files = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in entries]
        for _, path in sorted(files)[:-_MAX_FILES]:
            with suppress(OSError):
                os.unlink(path)


def _changed(old: Table, new: Table) -> Table:
    """Return the entries that are new or another object."""
    return {key: value for key, value in new.items() if old.get(key) is not value}
