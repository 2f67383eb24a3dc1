"""Files of a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from avactl.base.terminal import shorten_middle, visible_text
from avactl.datasets.errors import ChangedError, DatasetError, ObjectStoreError
from avactl.datasets.stores.locations import StoreLocation, key_problem
from avactl.datasets.stores.store import CHUNK, FoundObject

PARTIAL = ".partial"
"""End of the names of files that are being written; such files are never listed."""
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class LocalStore:
    """A directory. See `Store`.

    Symbolic links are errors unless they are followed: a directory of somebody else could lead anywhere.
    """

    def __init__(self, location: StoreLocation, follow: bool = False) -> None:
        self.location = location
        self._root = location.path.rstrip("/") + "/"
        self._follow = follow
        self._flags = _READ_FLAGS if follow else _READ_FLAGS | os.O_NOFOLLOW

    def objects(self, below: str = "") -> Iterator[FoundObject]:
        """Yield all files. Raises DatasetError, StoreError."""
        start = f"{below.rstrip('/')}/" if below else ""
        try:
            about = os.stat(self._root + start)
        except OSError as error:
            raise self._failure(start, error) from None
        yield from self._walk(start, ((about.st_dev, about.st_ino),))

    def _walk(self, directory: str, parents: tuple[tuple[int, int], ...]) -> Iterator[FoundObject]:
        try:
            with os.scandir(self._root + directory) as entries:
                # A directory sorts as its files do: `a-b`, `a/x`, `a0`.
                named = sorted((f"{each.name}/" if each.is_dir() else each.name, each) for each in entries)
        except OSError as error:
            raise self._failure(directory, error) from None
        for name, entry in named:
            key = directory + name
            if not key.isascii() or not key.isprintable() or len(key) > 512:
                self._want_key(key.rstrip("/"))
            if entry.is_symlink() and not self._follow:
                raise DatasetError(f"{self._name(key)} is a symbolic link", "replace it, or add `--follow-symlinks`")
            try:
                about = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    raise DatasetError(f"{self._name(key)} is a broken symbolic link", "remove it") from None
                raise ChangedError(self._name(key), "disappeared while the directory was listed") from None
            except OSError as error:
                raise self._failure(key, error) from None
            if name[-1] == "/":
                place = (about.st_dev, about.st_ino)
                if place in parents:
                    raise DatasetError(f"{self._name(key)} links to a directory that contains it", "remove the link")
                yield from self._walk(key, (*parents, place))
            elif not stat.S_ISREG(about.st_mode):
                raise DatasetError(f"{self._name(key)} is neither a file nor a directory", "remove it")
            elif not name.endswith(PARTIAL):
                yield FoundObject(key, about.st_size, "", str(about.st_mtime_ns))

    def directories(self, below: str = "") -> list[str]:
        """Return the names of the directories directly below a path. Raises StoreError."""
        try:
            with os.scandir(self._root + below) as entries:
                return sorted(each.name for each in entries if each.is_dir(follow_symlinks=self._follow))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failure(below, error) from None

    def find(self, key: str) -> FoundObject | None:
        """Return one file; None if it does not exist."""
        try:
            about = os.stat(self._root + key, follow_symlinks=self._follow)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failure(key, error) from None
        return FoundObject(key, about.st_size, "", str(about.st_mtime_ns)) if stat.S_ISREG(about.st_mode) else None

    def read(self, found: FoundObject) -> bytes:
        """Return the content of a file. Raises ChangedError, StoreError."""
        descriptor = self._open(found)
        try:
            # One byte more shows that the file grew.
            data = os.read(descriptor, found.size + 1)
            while len(data) < found.size and (more := os.read(descriptor, found.size + 1 - len(data))):
                data += more
            self._want_same(found, len(data), descriptor)
            return data
        except OSError as error:
            raise self._failure(found.key, error) from None
        finally:
            os.close(descriptor)

    def stream(self, found: FoundObject) -> Iterator[bytes]:
        """Yield the content of a file in chunks. Raises ChangedError, StoreError."""
        descriptor = self._open(found)
        try:
            size = 0
            while size <= found.size and (data := os.read(descriptor, CHUNK)):
                size += len(data)
                yield data
            self._want_same(found, size, descriptor)
        except OSError as error:
            raise self._failure(found.key, error) from None
        finally:
            os.close(descriptor)

    def _open(self, found: FoundObject) -> int:
        try:
            return os.open(self._root + found.key, self._flags)
        except FileNotFoundError:
            raise ChangedError(self._name(found.key), "disappeared after it was listed") from None
        except OSError as error:
            raise self._failure(found.key, error) from None

    def _want_same(self, found: FoundObject, size: int, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if size != found.size or about.st_size != size:
            now = max(size, about.st_size)
            raise ChangedError(self._name(found.key), f"changed: {found.size:,} bytes when listed, {now:,} when read")
        if found.stamp and str(about.st_mtime_ns) != found.stamp:
            raise ChangedError(self._name(found.key), "changed after it was listed")

    def write(self, key: str, content: bytes | Iterable[bytes]) -> None:
        """Write a file beside its place and rename it. Raises StoreError."""
        path = self._root + key
        partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}{PARTIAL}"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(partial)  # of a run that was killed
                # Whoever else writes to the directory cannot put a link in its place.
                with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb", buffering=0) as file:
                    for chunk in (content,) if isinstance(content, bytes) else content:
                        view = memoryview(chunk)
                        while view:
                            view = view[file.write(view) :]
                os.rename(partial, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial)
                raise
        except OSError as error:
            raise self._failure(key, error) from None

    def remove(self, key: str) -> None:
        """Remove a file, and the directories that it leaves empty. Raises StoreError."""
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._root + key)
        except OSError as error:
            raise self._failure(key, error) from None
        while (key := os.path.dirname(key)) != "":
            try:
                os.rmdir(self._root + key)
            except OSError:
                return

    def _want_key(self, key: str) -> None:
        if problem := key_problem(key):
            raise DatasetError(f"the name of {self._name(key)} {problem}", "rename the file")

    def _name(self, key: str) -> str:
        return visible_text(shorten_middle(self._root + key.rstrip("/"), 200))

    def _failure(self, key: str, error: OSError) -> ObjectStoreError:
        return ObjectStoreError(f"{self._name(key)}: {(error.strerror or str(error)).lower()}")
