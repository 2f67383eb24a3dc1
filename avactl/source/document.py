"""A document: one spec as plain data, and the way back from each of its values to file, line and column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from avactl.diagnostics import Span

Path = tuple[str | int, ...]
"""The way into a document: keys of mappings and indexes of lists."""


class Locator(Protocol):
    """Answers where a value stands."""

    def locate(self, index: int, path: Path, key: bool) -> Span: ...


class Document:
    """One document of a file. `value` is plain data: dict, list, str, int, float, bool, None."""

    __slots__ = ("file", "index", "locator", "value")

    def __init__(self, file: str, index: int, value: Any, locator: Locator) -> None:
        self.file = file
        self.index = index
        self.value = value
        self.locator = locator

    def span(self, *path: str | int, key: bool = False) -> Span:
        """Where the value at `path` stands (its key with `key=True`).

        Of a path that the document does not have, the nearest parent that it has.
        """
        return self.locator.locate(self.index, path, key)

    def get(self, *path: str | int) -> Any:
        """The value at `path`, or None."""
        value = self.value
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        return value


def strings(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, bool]]:
    """Every text in a value: its path, the text, and whether it is the key that the path ends with."""
    if isinstance(value, str):
        yield path, value, False
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), key, True
            yield from strings(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from strings(inner, (*path, index))


class FixedLocator:
    """Every value stands at one place: documents that do not come from YAML text."""

    __slots__ = ("place",)

    def __init__(self, place: Span) -> None:
        self.place = place

    def locate(self, index: int, path: Path, key: bool) -> Span:
        return self.place
