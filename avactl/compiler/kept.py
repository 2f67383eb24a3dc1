"""Specs of an earlier run that are built again only when somebody looks at them, and a program that notes who looks at
what, so that a result can be kept as long as nothing that it read has changed."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from avactl.kinds.program import Item, Program
from avactl.source.document import Document

Key = tuple[str, str, str]
"""Kind, team or "", name."""
Atom = str | tuple[str, ...]
"""Something that can be read of a program: all specs of a kind, one spec by its key (there or not), a file's content
by `("", path)`, or `*`, everything."""
EVERYTHING = "*"

T = TypeVar("T")


class KeptDocument(Document):
    """A document whose value and places are read when they are asked for."""

    __slots__ = ("_data", "_text")

    def __init__(self, file: str, index: int, data: bytes, text: Callable[[str], str]) -> None:
        """`data` is the value in marshal's format, `text` gives the text of a file by its path."""
        self.file = file
        self.index = index
        self._data = data
        self._text = text

    def __getattr__(self, name: str) -> Any:  # called for slots that are not filled yet
        if name == "value":
            self.value = marshal.loads(self._data)  # noqa: S302 - plain data out of our own private folder
            return self.value
        if name == "locator":
            from avactl.source.yaml import YamlLocator

            self.locator = YamlLocator(self.file, self._text(self.file))
            return self.locator
        raise AttributeError(name)


class KeptItem(Item):
    """A spec that was valid and resolved in an earlier run, and has not changed since."""

    __slots__ = ("_key", "_load", "_name")

    def __init__(self, key: Key, name: str, load: Callable[[], tuple[Document, Any]]) -> None:
        self._key = key
        self._name = name
        self._load = load

    def __getattr__(self, name: str) -> Any:
        if name in ("doc", "resource"):
            self.doc, self.resource = self._load()
            return getattr(self, name)
        raise AttributeError(name)

    @property
    def kind(self) -> str:
        return self._key[0]

    @property
    def team(self) -> str | None:
        return self._key[1] or None

    @property
    def spec_name(self) -> str:
        return self._key[2]

    @property
    def name(self) -> str:
        return self._name

    @property
    def key(self) -> Key:
        return self._key


class TracedProgram(Program):
    """A program that notes what is read of it, also through what was memoised before."""

    def __init__(self, items: Iterable[Item], read_file: Callable[[str], bytes | None]) -> None:
        self._reads: set[Atom] = set()
        self._memo_reads: dict[Any, set[Atom]] = {}
        self._all: list[Item] = []
        self._read_raw = read_file
        super().__init__(items, self._read_traced)

    def trace(self, run: Callable[[], T]) -> tuple[T, frozenset[Atom]]:
        """The result of a function, and what it read of the program."""
        outer, self._reads = self._reads, set()
        try:
            return run(), frozenset(self._reads)
        finally:
            self._reads = outer

    def _read_traced(self, path: str) -> bytes | None:
        self._reads.add(("", path))
        return self._read_raw(path)

    @property
    def items(self) -> list[Item]:
        self._reads.add(EVERYTHING)
        return self._all

    @items.setter
    def items(self, items: list[Item]) -> None:
        self._all = items

    def of(self, kind: str) -> list[Item]:
        self._reads.add(kind)
        return super().of(kind)

    def find(self, kind: str, name: str, team: str | None = None) -> Item | None:
        item = super().find(kind, name, team)
        if team:
            self._reads.add((kind, team, name))
        if item is None or item.team is None:
            self._reads.add((kind, "", name))
        return item

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        reads = self._memo_reads.get(key)
        if reads is None:
            value, found = self.trace(lambda: super(TracedProgram, self).memo(key, make))
            reads = self._memo_reads[key] = set(found)
        else:
            value = self._memo[key]
        self._reads |= reads
        return value
