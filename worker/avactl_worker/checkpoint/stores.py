"""Places for checkpoints: a directory, or a prefix in an object store by fsspec."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import socket
from pathlib import Path
from typing import Any, BinaryIO, Iterable

from avactl_worker.checkpoint.errors import CheckpointError

_NAME = re.compile(r"step-(\d{12,19})\.ckpt")
_PUSHED = ".pushed"
"""Suffix of the directory that shows a cache tier's object store, beside the one that files are written to."""
_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems that have no fsync, such as some FUSE mounts of buckets."""


def name_of(step: int) -> str:
    """Return the file name of a step's checkpoint."""
    return f"step-{step:012d}.ckpt"


def steps_of(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoints among file names, in order."""
    return sorted(int(found.group(1)) for found in map(_NAME.fullmatch, names) if found)


class Directory:
    """A directory, which the first write makes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __str__(self) -> str:
        return str(self._path)

    def steps(self) -> list[int]:
        """Return the steps of which there are checkpoints, in order. Raises OSError, also if it is not certain."""
        try:
            return steps_of(_names(self._path))
        except FileNotFoundError as error:
            # A directory above may list it all the same: a mount that is gone or late, or a link to nowhere.
            path = self._path.absolute()
            above = next(each for each in path.parents if each.exists())
            if path.parts[len(above.parts)] in _names(above):
                raise OSError(errno.EIO, f"{above} lists it, and it does not exist") from error
        return []

    def pushed(self) -> tuple[Path, int] | None:
        """Return the directory of a cache tier that shows what was pushed from this one, and the newest step there.

        Cache daemons of older versions moved files from here to there. Raises OSError.
        """
        path = self._path.absolute()
        for mount in [path, *list(path.parents)[:-1]]:
            place = mount.with_name(mount.name + _PUSHED) / path.relative_to(mount)
            try:
                steps = steps_of(_names(place))
            except (FileNotFoundError, NotADirectoryError):
                continue
            if steps:
                return place, steps[-1]
        return None

    def write(self, step: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a checkpoint under another name, and rename it when it is on disk. Raises OSError."""
        self._path.mkdir(parents=True, exist_ok=True)
        part = self._path / f".{name_of(step)}.{socket.gethostname()}-{os.getpid()}.part"
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                for chunk in chunks:
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                _fsync(descriptor)
            finally:
                os.close(descriptor)
            part.replace(self._path / name_of(step))
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        directory = os.open(self._path, os.O_RDONLY)
        try:
            _fsync(directory)
        finally:
            os.close(directory)

    def open(self, step: int) -> tuple[BinaryIO, int]:
        """Open a checkpoint; returns its size too."""
        file = (self._path / name_of(step)).open("rb")
        return file, os.fstat(file.fileno()).st_size

    def remove(self, step: int) -> None:
        """Remove a checkpoint."""
        (self._path / name_of(step)).unlink()

    def remove_parts(self) -> None:
        """Remove what killed processes have left."""
        for part in self._path.glob(".step-*.part"):
            with contextlib.suppress(OSError):
                part.unlink()


def _names(path: Path) -> list[str]:
    return os.listdir(path)  # noqa: PTH208 - names, not paths


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


class Bucket:
    """A prefix in an object store. An object is there when it is complete, so it needs no other name before."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        scheme = url.partition("://")[0]
        try:
            fsspec = importlib.import_module("fsspec")
            self._files, self._path = fsspec.core.url_to_fs(self._url)
        except ImportError as error:
            package = "s3fs" if scheme == "s3" else f"fsspec with its package for {scheme}://"
            raise CheckpointError(
                f"checkpoints at {self._url} need {package} ({error}): pip install {package.split()[0]}, or save to a "
                "directory: a `volume`, or a bucket of the team behind a cache tier"
            ) from None

    def __str__(self) -> str:
        return self._url

    def steps(self) -> list[int]:
        """Return the steps of which there are checkpoints, in order."""
        self._files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return steps_of(each.rpartition("/")[2] for each in self._files.ls(self._path, detail=False))
        return []

    def write(self, step: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Upload a checkpoint."""
        # No makedirs: an object store has no directories, and s3fs would create a missing bucket.
        before = self._files.exists(self._at(step))
        try:
            with self._files.open(self._at(step), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
        except BaseException:
            # The end of the block may have completed the upload of what there was. A checkpoint of the same step from
            # before stays: it may still be whole, and half of one is found when it is read.
            if not before:
                with contextlib.suppress(Exception):
                    self.remove(step)
            raise

    def pushed(self) -> None:
        """Return None: a store has no other directory."""

    def open(self, step: int) -> tuple[BinaryIO, int]:
        """Open a checkpoint; returns its size too."""
        return self._files.open(self._at(step), "rb"), int(self._files.size(self._at(step)))

    def remove(self, step: int) -> None:
        """Remove a checkpoint."""
        self._files.rm_file(self._at(step))

    def remove_parts(self) -> None:
        """Do nothing: an upload that was killed leaves no object."""

    def _at(self, step: int) -> str:
        return f"{self._path}/{name_of(step)}"


def store_at(location: Any) -> Directory | Bucket:
    """Return the store at a directory or URL. Raises CheckpointError if a URL's package is missing."""
    text = os.fspath(location)
    if "://" in text and not text.startswith("file://"):
        return Bucket(text)
    return Directory(text[len("file://") :] if text.startswith("file://") else text)
