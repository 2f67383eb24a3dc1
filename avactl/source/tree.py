"""A repository's files, from a directory, from git, or from memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_SKIPPED = {"node_modules", "__pycache__"}


class DirTree:
    """Files below a directory; hidden ones and symbolic links that leave it are not seen."""

    def __init__(self, root: str | Path, only: Iterable[str] | None = None) -> None:
        self.root = Path(root)
        self._only = list(only) if only is not None else None

    def paths(self) -> list[str]:
        """Paths of all files from the root, sorted; with `only`, of those below one of the given paths."""
        if self._only is None:
            return sorted(self._walk(str(self.root), ""))
        found: set[str] = set()
        for path in self._only:
            full = self.root / path
            if full.is_dir():
                found.update(self._walk(str(full), "" if path in ("", ".") else path.rstrip("/") + "/"))
            else:
                found.add(path)
        return sorted(found)

    def _walk(self, directory: str, prefix: str) -> Iterable[str]:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path, f"{prefix}{entry.name}/")
                elif entry.is_file() and (not entry.is_symlink() or self._inside(entry.path)):
                    yield prefix + entry.name

    def _inside(self, path: str) -> bool:
        return Path(path).resolve().is_relative_to(self.root.resolve())

    def size(self, path: str) -> int:
        return (self.root / path).stat().st_size

    def read(self, path: str) -> bytes:
        with open(f"{self.root}/{path}", "rb") as file:  # noqa: PTH123 - ten thousand times: Path costs
            return file.read()


class MemoryTree:
    """Files in memory, for the library and for tests."""

    def __init__(self, files: Mapping[str, bytes | str]) -> None:
        self._files = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}

    def paths(self) -> list[str]:
        return sorted(self._files)

    def size(self, path: str) -> int:
        return len(self._files[path])

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(path) from None


class GitError(Exception):
    """git said no; the text is what it said."""


def git(directory: str | Path, *args: str, data: bytes | None = None) -> bytes:
    """Standard output of a git command. Raises GitError."""
    command = ["git", "-C", str(directory), *args]
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    if done.returncode:
        raise GitError(done.stderr.decode(errors="replace").strip() or f"git {args[0]} failed")
    return done.stdout


class GitTree:
    """Files of a directory at a revision, read from git's store; no checkout is touched."""

    def __init__(self, directory: str | Path, revision: str) -> None:
        """`directory` may be a part of a work tree: then only that part is seen. Raises GitError."""
        commit = git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        self.commit = commit.decode().strip()
        prefix = git(directory, "rev-parse", "--show-prefix").decode().strip()
        self._files: dict[str, tuple[str, int]] = {}
        self._directory = directory
        self._content: dict[str, bytes] | None = None
        listing = git(directory, "ls-tree", "-r", "-z", "-l", "--full-tree", self.commit, "--", prefix or ".")
        for line in listing.decode("utf-8", "surrogateescape").split("\0"):
            meta, _, path = line.partition("\t")
            if not path or not path.startswith(prefix):
                continue
            mode, _, blob, size = meta.split()
            path = path[len(prefix) :]
            if mode in ("100644", "100755") and not any(
                part.startswith(".") or part in _SKIPPED for part in path.split("/")
            ):
                self._files[path] = (blob, int(size))

    def paths(self) -> list[str]:
        return sorted(self._files)

    def size(self, path: str) -> int:
        return self._files[path][1]

    def read(self, path: str) -> bytes:
        """Content of a file. The first call brings all small files at once: a git process a file would be slow."""
        if path not in self._files:
            raise FileNotFoundError(path)
        if self._content is None:
            self._content = self._batch()
        blob = self._files[path][0]
        if blob not in self._content:
            self._content[blob] = git(self._directory, "cat-file", "blob", blob)
        return self._content[blob]

    def _batch(self, limit: int = 4 * 1024 * 1024) -> dict[str, bytes]:
        wanted = sorted({blob for blob, size in self._files.values() if size <= limit})
        out = git(self._directory, "cat-file", "--batch", data="".join(f"{blob}\n" for blob in wanted).encode())
        content: dict[str, bytes] = {}
        position = 0
        while position < len(out):
            end = out.index(b"\n", position)
            blob, _, size = out[position:end].decode().split()
            content[blob] = out[end + 1 : end + 1 + int(size)]
            position = end + 1 + int(size) + 1
        return content
