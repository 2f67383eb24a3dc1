"""A repository's files, from a directory or from memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

SKIPPED = {"node_modules", "__pycache__"}
RENDERED = ".avactl-render"
"""Stands in directories that `avactl render` writes: what is in them is output, never specs."""

SPEC_SUFFIXES = (".yaml", ".yml", ".py")
"""How names of spec files end."""

NOWHERE = "is a symbolic link that leads to no file of the repository"

MAX_INPUT = 64 * 1024 * 1024
"""Largest file that a spec may name, bytes; about half a million lines of a dataset's manifest."""

Stamp = tuple[int, int, int, int]
"""How a file looks from outside: inode, bytes, and the times of its last change of content and of anything, ns."""


def hidden(parts: Iterable[str]) -> bool:
    """Whether a path has a part that begins with a dot."""
    return any(part.startswith(".") for part in parts)


def find_root(path: Path) -> Path:
    """Return the repository of a path: the nearest directory above with an avactl.yaml, else its own directory."""
    start = path if path.is_dir() else path.parent
    for directory in (start, *start.resolve().parents):
        if (directory / "avactl.yaml").is_file():
            return directory
    return start


class Tree(Protocol):
    """A repository's files: a directory, a git revision, or memory."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Paths that `paths` last left out though they may hold specs (directories and links), with the reason."""
        ...

    def paths(self) -> list[str]:
        """Paths of all files from the root, with `/`."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file. Raises OSError."""
        ...

    def read(self, path: str) -> bytes:
        """Content of a file. Raises OSError."""
        ...


class Sized(Protocol):
    """The part of a `Tree` that reads files."""

    def size(self, path: str) -> int: ...
    def read(self, path: str) -> bytes: ...


def read_input(tree: Sized, path: str) -> bytes | None:
    """Content of a file that a spec names; None where the repository has none that a spec may name.

    That leaves out hidden files, those outside of the repository, pipes and devices, and more than `MAX_INPUT` bytes.
    """
    try:
        if path.startswith("/") or hidden(path.split("/")) or tree.size(path) > MAX_INPUT:
            return None
        return tree.read(path)
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None


class DirTree:
    """Files below a directory; hidden ones, rendered ones and symbolic links that leave it are not seen."""

    def __init__(self, root: str | Path, only: Iterable[str] | None = None) -> None:
        self.root = Path(root)
        self.skipped: dict[str, str] = {}
        self._seen: set[str] = set()
        """Files that a walk has found, none of which leaves the directory."""
        self._only = list(only) if only is not None else None

    def paths(self) -> list[str]:
        """Paths of all files from the root, sorted; with `only`, of those below one of the given paths."""
        return sorted(path for path, _ in self._files())

    def stamps(self) -> dict[str, Stamp]:
        """The stamps of all files that `paths` names, in its order. A file that is gone by then is left out."""
        found: dict[str, Stamp] = {}
        for path, entry in sorted(self._files(), key=lambda file: file[0]):
            stamp = self.stamp(path, entry)
            if stamp is not None:
                found[path] = stamp
        return found

    def stamp(self, path: str, entry: os.DirEntry[str] | None = None) -> Stamp | None:
        """How a file looks from outside; None if it is not there."""
        try:
            about = entry.stat() if entry is not None else os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    @property
    def key(self) -> str:
        """Names this tree among others of the machine."""
        return "\n".join((str(self.root.resolve()), *(self._only or ())))

    def _files(self) -> Iterable[tuple[str, os.DirEntry[str] | None]]:
        self.skipped = {}
        if self._only is None:
            return self._walk(str(self.root), "")
        found: dict[str, os.DirEntry[str] | None] = {}
        for path in self._only:
            full = self.root / path
            if full.is_dir():
                found.update(self._walk(str(full), "" if path in ("", ".") else path.rstrip("/") + "/"))
            else:
                found.setdefault(path, None)
        return found.items()

    def _walk(self, directory: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        ahead = [(directory, prefix)]  # not by recursion: directories may be nested more deeply than Python's calls
        while ahead:
            directory, prefix = ahead.pop()
            try:
                with os.scandir(directory) as listing:
                    entries = list(listing)
            except OSError as error:
                self.skipped[prefix.rstrip("/") or "."] = f"cannot be read: {error.strerror or error}"
                continue
            if any(entry.name == RENDERED for entry in entries):
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name in SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    ahead.append((entry.path, f"{prefix}{entry.name}/"))
                elif _is_file(entry) and (not entry.is_symlink() or self._inside(entry.path)):
                    self._seen.add(prefix + entry.name)
                    yield prefix + entry.name, entry
                elif entry.is_symlink() and entry.name.endswith(SPEC_SUFFIXES) and not _is_directory(entry):
                    self.skipped[prefix + entry.name] = NOWHERE

    def _inside(self, path: str) -> bool:
        """Whether a path leads, through symbolic links, to a place in the directory that is not hidden."""
        try:
            place = Path(path).resolve().relative_to(self.root.resolve())
        except (OSError, RuntimeError, ValueError):
            return False
        return not hidden(place.parts)

    def size(self, path: str) -> int:
        """Bytes of a file. Raises OSError, also for a pipe or a device: reading one may never end."""
        about = os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        _want_regular(about, path)
        return about.st_size

    def read(self, path: str) -> bytes:
        """Content of a file. Raises OSError, as `size`, and for what symbolic links lead out of the directory."""
        if path not in self._seen and not self._inside(f"{self.root}/{path}"):
            raise OSError(errno.EACCES, "it is hidden, or a symbolic link leads out of the repository", path)
        # Ten thousand times: Path costs.
        with open(f"{self.root}/{path}", "rb", buffering=0, opener=_at_once) as file:
            _want_regular(os.fstat(file.fileno()), path)
            return file.read()


def _at_once(path: str, flags: int) -> int:
    """Opens a file; a pipe without waiting for somebody who writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _want_regular(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a symbolic link to itself
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


class MemoryTree:
    """Files in memory, for the library and for tests."""

    def __init__(self, files: Mapping[str, bytes | str]) -> None:
        self.skipped: dict[str, str] = {}
        self._files = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}

    def paths(self) -> list[str]:
        return sorted(self._files)

    def size(self, path: str) -> int:
        return len(self.read(path))

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
