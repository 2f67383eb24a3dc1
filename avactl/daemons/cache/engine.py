"""The interface of a cache engine to the daemon. `AlluxioEngine` is its one implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class EngineError(Exception):
    """The engine refused or failed a request."""


class NotFoundError(EngineError):
    """The path does not exist."""


class UnavailableError(EngineError):
    """A process of the engine did not answer; the request may or may not have taken effect."""


class CachedBlock(NamedTuple):
    """A part of a file, as it is held by workers."""

    id: int
    offset: int
    """Bytes from the file's beginning."""
    size: int
    """Bytes."""
    holders: tuple[str, ...]
    """Addresses of the workers that hold it."""


class CacheWorker(NamedTuple):
    """A process that holds data."""

    address: str
    """`HOST:PORT` at which it is reached."""
    host: str
    """Address of its machine."""
    capacity: int
    """Bytes."""
    used: int
    """Bytes."""


class Mount(NamedTuple):
    """An under-store in the engine's namespace."""

    path: str
    id: int
    url: str


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the engine's namespace."""

    id: int
    """Of this content: a file that is written anew under the same path has another."""
    path: str
    size: int
    """Bytes."""
    complete: bool
    """False while a writer has it open, or has died with it."""
    persisted: bool
    """The engine says that its under-store has it."""
    pinned: bool
    cached: int
    """Percent of its bytes in the cache, whole number."""
    created: float
    """Unix seconds; so are the others."""
    modified: float
    accessed: float
    mark: bytes
    """Value of the daemon's attribute; empty without one."""
    store_path: str
    """URL of its object."""
    mount: int
    """Id of its mount."""
    block_size: int
    blocks: tuple[CachedBlock, ...]


class Reads(NamedTuple):
    """Bytes that a tier has served since its masters started."""

    total: int
    """To readers, from the cache or the under-stores."""
    store: int
    """Of these, from the under-stores; without loads ahead of readers."""


class CacheEngine(Protocol):
    """One tier. All methods raise EngineError."""

    def files(self, path: str, refresh: bool = False) -> AsyncIterator[CachedFile]:
        """Yield the files below a directory, or the file itself. `refresh`: look in the under-store for new ones."""
        ...

    async def status(self, path: str, refresh: bool = False) -> CachedFile:
        """Return one file."""
        ...

    async def workers(self) -> list[CacheWorker]:
        """Return the live workers."""
        ...

    async def reads(self) -> Reads:
        """Return what the tier has served."""
        ...

    async def mounts(self) -> list[Mount]:
        """Return the under-stores."""
        ...

    async def load(self, worker: CacheWorker, file: CachedFile, block: CachedBlock) -> None:
        """Let a worker read a block from the under-store into the cache."""
        ...

    async def pin(self, path: str, pinned: bool, recursive: bool = False) -> None:
        """Keep files in the cache, or do not any longer."""
        ...

    async def mark(self, path: str, value: bytes) -> None:
        """Set the daemon's attribute of a file."""
        ...

    async def persist(self, path: str) -> None:
        """Begin to write a file to its under-store."""
        ...

    def read(self, file: CachedFile) -> AsyncIterator[bytes]:
        """Yield the content as readers see it: from the cache, and from the under-store where it is not cached."""
        ...

    def read_store(self, url: str, mount: int, size: int) -> AsyncIterator[bytes]:
        """Yield the content of an object, past the cache: `size` bytes, and one more if it has more."""
        ...

    async def write_store(self, url: str, mount: int, chunks: AsyncIterator[bytes]) -> None:
        """Write an object, past the cache."""
        ...

    async def free(self, path: str, recursive: bool = False) -> None:
        """Drop the cached copy of what is persisted and not pinned."""
        ...

    async def delete(self, path: str) -> None:
        """Delete a file in the namespace and in its under-store."""
        ...

    async def rename(self, path: str, to: str) -> None:
        """Rename a file, with its object."""
        ...

    async def make_directory(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
