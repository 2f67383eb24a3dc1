"""A repository's files, on disk or in memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

SKIPPED = {"node_modules", "__pycache__"}
RENDERED = ".avactl-render"
"""Marker file in directories written by `avactl render`: their contents are output, not specs."""

SPEC_SUFFIXES = (".yaml", ".yml", ".py")
"""File name extensions of specs."""

NOWHERE = "is a symbolic link to no file of the repository"

MAX_INPUT = 64 * 1024 * 1024
"""Largest file that a spec may reference, in bytes; about half a million lines of a dataset's manifest."""

Stamp = tuple[int, int, int, int]
"""Stat fingerprint of a file: inode, size in bytes, mtime and ctime in ns."""


ENVIRONMENT_VARIABLE = "AVACTL_ENVIRONMENT"
"""Variable with the name of the environment to compile for; `--environment` sets it."""


def chosen_environment() -> str:
    """Return the environment that the user chose for this process; "" if none."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "")


def hidden(parts: Iterable[str]) -> bool:
    """Return whether a path has a component that begins with a dot."""
    return any(part.startswith(".") for part in parts)


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
        if path.endswith("/"):
            return "\n".join(sorted(each for each in tree.paths() if each.startswith(path))).encode() or None
        if path.startswith("/") or hidden(path.split("/")) or tree.size(path) > MAX_INPUT:
            return None
        return tree.read(path)
    except (OSError, ValueError):  # ValueError: a path with a NUL byte
        return None


class DirTree:
    """Files below a directory, except hidden ones, rendered output and symbolic links that leave the directory."""

    def __init__(self, root: str | Path, only: Iterable[str] | None = None, *, environment: str | None = None) -> None:
        """`environment`: its name, "" for none; None: the one that the user chose."""
        self.root = Path(root)
        self.environment = chosen_environment() if environment is None else environment
        self.skipped: dict[str, str] = {}
        self._seen: set[str] = set()
        """Files found by a walk, all of them inside the directory."""
        self._only = list(only) if only is not None else None

    def paths(self) -> list[str]:
        """Return the sorted paths of all files from the root; with `only`, of those below the given paths."""
        return sorted(path for path, _ in self._files())

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all files of `paths`, in order. Deleted files are omitted."""
        stamps = ((path, self.stamp(path, entry)) for path, entry in sorted(self._files(), key=lambda file: file[0]))
        return {path: stamp for path, stamp in stamps if stamp is not None}

    def stamp(self, path: str, entry: os.DirEntry[str] | None = None) -> Stamp | None:
        """Return a file's stamp; None if it does not exist."""
        try:
            about = entry.stat() if entry is not None else os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    @property
    def key(self) -> str:
        """Identity of this tree and its environment on the machine."""
        environment = (f"\n{self.environment}\n",) if self.environment else ()
        return "\n".join((str(self.root.resolve()), *(self._only or ()), *environment))

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
        ahead = [(directory, prefix)]  # iterative: directories may be nested deeper than Python's recursion limit
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
                elif _holds(entry.is_file) and (not entry.is_symlink() or self._inside(entry.path)):
                    self._seen.add(prefix + entry.name)
                    yield prefix + entry.name, entry
                elif entry.is_symlink() and entry.name.endswith(SPEC_SUFFIXES) and not _holds(entry.is_dir):
                    self.skipped[prefix + entry.name] = NOWHERE

    def _inside(self, path: str) -> bool:
        """Return whether a path resolves, through symbolic links, to a visible place in the directory."""
        try:
            place = Path(path).resolve().relative_to(self.root.resolve())
        except (OSError, RuntimeError, ValueError):
            return False
        return not hidden(place.parts)

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises OSError, also for pipes and devices, which may never end."""
        about = os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        _want_regular(about, path)
        return about.st_size

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises OSError as `size`, and for symbolic links that leave the directory."""
        if path not in self._seen and not self._inside(f"{self.root}/{path}"):
            raise OSError(errno.EACCES, "it is hidden, or a symbolic link leads out of the repository", path)
        # Called ten thousand times, and Path is slow.
        with open(f"{self.root}/{path}", "rb", buffering=0, opener=_at_once) as file:
            _want_regular(os.fstat(file.fileno()), path)
            return file.read()


def _at_once(path: str, flags: int) -> int:
    """Open a file without blocking on a pipe that has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _want_regular(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _holds(ask: Callable[[], bool]) -> bool:
    """Return the answer of a directory entry; False for a circular symbolic link."""
    try:
        return ask()
    except OSError:
        return False


class MemoryTree:
    """Files in memory, for library use and tests."""

    def __init__(self, files: Mapping[str, bytes | str], *, environment: str = "") -> None:
        self.environment = environment
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
