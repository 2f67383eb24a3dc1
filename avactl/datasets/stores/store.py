"""Access to data: one interface for directories and object stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from avactl.datasets.stores.locations import StoreLocation

CHUNK = 8 * 1024 * 1024
"""Bytes read or written at once."""


class FoundObject(NamedTuple):
    """An object as listed."""

    key: str
    """Path below the store's location."""
    size: int
    etag: str
    """The store's identifier of this content; "" for files."""
    stamp: str
    """Changes when the object is written: ETag, or time of modification; "" if unknown."""


class Store(Protocol):
    """Objects below one location."""

    @property
    def location(self) -> StoreLocation: ...

    def objects(self, below: str = "") -> Iterator[FoundObject]:
        """Yield all objects in the order of their keys' UTF-8 bytes. Raises StoreError, DatasetError for odd names."""
        ...

    def directories(self, below: str = "") -> list[str]:
        """Return the names of the directories directly below a path; none if it does not exist."""
        ...

    def find(self, key: str) -> FoundObject | None:
        """Return one object; None if it does not exist."""
        ...

    def read(self, found: FoundObject) -> bytes:
        """Return the content. Raises ChangedError if it is not the listed object any more."""
        ...

    def stream(self, found: FoundObject) -> Iterator[bytes]:
        """Yield the content in chunks. Raises ChangedError at its end if it is not the listed object any more."""
        ...

    def write(self, key: str, content: bytes | Iterable[bytes]) -> None:
        """Write an object: readers see all of it or nothing."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...
