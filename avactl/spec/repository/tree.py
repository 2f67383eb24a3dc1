"""A repository's files, on disk or in memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from avactl.spec.repository.tree_files import ODD_NAME, FileKind, find_file, is_hidden, odd_name, walk

MAX_INPUT = 64 * 1024 * 1024
"""Largest file that a spec may reference, in bytes; about half a million lines of a dataset's manifest."""

Stamp = tuple[int, int, int, int]
"""Stat fingerprint of a file: inode, size in bytes, mtime and ctime in ns."""


ENVIRONMENT_VARIABLE = "AVACTL_ENVIRONMENT"
"""Variable with the name of the environment to compile for; `--environment` sets it."""


def chosen_environment() -> str:
    """Return the environment that the user chose for this process; "" if none."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "")


def find_root(path: Path) -> Path:
    """Return the repository of a path: the nearest directory above with an avactl.yaml, else its own directory."""
    start = path if path.is_dir() else path.parent
    for directory in (start, *start.resolve().parents):
        if (directory / "avactl.yaml").is_file():
            return directory
    return start


class Tree(Protocol):
    """A repository's files, seen in one of its environments: a directory, a git revision, or memory."""

    @property
    def environment(self) -> str:
        """Name of the environment to compile for; "" if none was named."""
        ...

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

    def paths(self) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str) -> bytes: ...


def read_input(tree: Sized, path: str) -> bytes | None:
    """Read a file that a spec references; None if it is not allowed.

    A directory, which ends with `/`, gives the paths of the files in it and below, one per line.

    Not allowed are hidden files, files outside of the repository, pipes, devices, and files over `MAX_INPUT` bytes.
    """
    try:
        if path.endswith("/"):  # no path has a line break
            return "\n".join(sorted(each for each in tree.paths() if each.startswith(path))).encode() or None
        if path.startswith("/") or is_hidden(path.split("/")) or odd_name(path) or tree.size(path) > MAX_INPUT:
            return None
        return tree.read(path)
    except (OSError, ValueError):  # ValueError: a path with a NUL byte
        return None


class DirTree:
    """Files below a directory, as a commit of them would have them: see `avactl.spec.repository.tree_files`."""

    def __init__(
        self,
        root: str | Path,
        only: Iterable[str] | None = None,
        *,
        environment: str | None = None,
        hidden: bool = False,
    ) -> None:
        """`environment`: its name, "" for none; None: the one that the user chose. `hidden`: with hidden files."""
        self.root = Path(root)
        self.shows_hidden = hidden
        self.environment = chosen_environment() if environment is None else environment
        self.skipped: dict[str, str] = {}
        self._found: dict[str, str] = {}
        """Files found by a walk, and the path that is read: another one for links."""
        self._only = list(only) if only is not None else None

    def paths(self) -> list[str]:
        """Return the sorted paths of all files from the root; with `only`, of those below the given paths."""
        self.skipped = {}
        found: dict[str, str | None] = {}
        for path in [""] if self._only is None else self._only:
            if (self.root / path).is_dir():
                files, skipped = walk(self, "" if path in ("", ".") else path.rstrip("/") + "/")
                found |= files
                self._found |= files
                self.skipped |= skipped
            elif odd_name(path):
                self.skipped[path] = ODD_NAME
            else:
                found.setdefault(path)
        return sorted(found)

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all files of `paths`, in order. Deleted files are omitted."""
        stamps = ((path, self.stamp(path)) for path in self.paths())
        return {path: stamp for path, stamp in stamps if stamp is not None}

    def stamp(self, path: str) -> Stamp | None:
        """Return a file's stamp; None if it does not exist."""
        try:
            about = os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    @property
    def key(self) -> str:
        """Identity of this tree and its environment on the machine."""
        environment = (f"\n{self.environment}\n",) if self.environment else ()
        return "\n".join((str(self.root.resolve()), *(self._only or ()), *environment))

    def children(self, directory: str) -> list[tuple[str, FileKind]]:
        """Return the names in a directory. Raises OSError."""
        with os.scandir(f"{self.root}/{directory}") as listing:
            return [(entry.name, _kind_of(entry)) for entry in listing]

    def kind(self, path: str) -> FileKind | None:
        """Return what a path is, without following a link at its end; None if it cannot be reached."""
        try:
            mode = os.lstat(f"{self.root}/{path}").st_mode
        except (OSError, ValueError):  # ValueError: a NUL byte
            return None
        if stat.S_ISDIR(mode):
            return FileKind.REPOSITORY if os.path.lexists(f"{self.root}/{path}/.git") else FileKind.DIRECTORY
        return FileKind.LINK if stat.S_ISLNK(mode) else FileKind.FILE if stat.S_ISREG(mode) else FileKind.OTHER

    def target(self, path: str) -> str:
        """Return the target of a link. Raises OSError."""
        return os.readlink(f"{self.root}/{path}")  # noqa: PTH115 - Path would normalise it

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises OSError, also for pipes and devices, which may never end."""
        about = os.stat(f"{self.root}/{self._place(path)}")  # noqa: PTH116 - as `read`
        _want_regular(about, path)
        return about.st_size

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises OSError as `size`, and for symbolic links that leave the directory."""
        # Called ten thousand times, and Path is slow.
        with open(f"{self.root}/{self._place(path)}", "rb", buffering=0, opener=_at_once) as file:
            _want_regular(os.fstat(file.fileno()), path)
            return file.read()

    def _place(self, path: str) -> str:
        return self._found.get(path) or find_file(self, path)


def _kind_of(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_symlink():
        return FileKind.LINK
    if entry.is_dir(follow_symlinks=False):
        return FileKind.DIRECTORY
    return FileKind.FILE if entry.is_file(follow_symlinks=False) else FileKind.OTHER


def _at_once(path: str, flags: int) -> int:
    """Open a file without blocking on a pipe that has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _want_regular(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


class MemoryTree:
    """Files in memory, for library use and tests."""

    def __init__(self, files: Mapping[str, bytes | str], *, environment: str = "") -> None:
        self.environment = environment
        self.skipped: dict[str, str] = {path: ODD_NAME for path in sorted(files) if odd_name(path)}
        self._files = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}

    def paths(self) -> list[str]:
        return sorted(self._files.keys() - self.skipped.keys())

    def size(self, path: str) -> int:
        return len(self.read(path))

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class OverlayTree:
    """A tree in which one file has another content, or is new."""

    def __init__(self, below: Tree, path: str, data: bytes) -> None:
        self._below, self._path, self._data = below, path, data
        self.environment = below.environment

    @property
    def skipped(self) -> Mapping[str, str]:
        return self._below.skipped

    def paths(self) -> list[str]:
        return sorted({*self._below.paths(), self._path})

    def size(self, path: str) -> int:
        return len(self._data) if path == self._path else self._below.size(path)

    def read(self, path: str) -> bytes:
        return self._data if path == self._path else self._below.read(path)
