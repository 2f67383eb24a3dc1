"""A document: one spec as plain data, with the source location of each value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from avactl.diagnostics import Span

Path = tuple[str | int, ...]
"""Path of a value: keys of mappings and indices of lists."""


class Locator(Protocol):
    """Finds the location of a value."""

    def locate(self, index: int, path: Path, key: bool) -> Span: ...


class Document:
    """One document of a file. `value` is plain data: dict, list, str, int, float, bool, None."""

    __slots__ = ("file", "index", "locator", "value")

    shipped = False
    """True if the document comes with avactl. No name of a file says so: those are the author's."""

    def __init__(self, file: str, index: int, value: Any, locator: Locator) -> None:
        self.file = file
        self.index = index
        self.value = value
        self.locator = locator

    def span(self, *path: str | int, key: bool = False) -> Span:
        """Return the location of the value at `path` (of its key with `key=True`).

        For a path that does not exist, return the location of its nearest existing parent.
        """
        return self.locator.locate(self.index, path, key)

    def get(self, *path: str | int) -> Any:
        """Return the value at `path`, or None."""
        value = self.value
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        return value

    @property
    def sources(self) -> Sequence[Document]:
        """The documents that declare or change the spec: those of several files if it has overlays."""
        return (self,)

    def removed(self, *path: str | int) -> Span | None:
        """Return the location of what removes a missing key, if anything does."""
        return None


class ShippedDocument(Document):
    """A document of avactl's library, outside of the repository."""

    __slots__ = ()

    shipped = True


def nested_strings(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, bool]]:
    """Yield every string in a value: its path, the string, and True if it is the last key of the path."""
    if isinstance(value, str):
        yield path, value, False
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), key, True
            yield from nested_strings(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from nested_strings(inner, (*path, index))


class FixedLocator:
    """Locates every value at one place, for documents that are not YAML text."""

    __slots__ = ("place",)

    def __init__(self, place: Span) -> None:
        self.place = place

    def locate(self, index: int, path: Path, key: bool) -> Span:
        return self.place
