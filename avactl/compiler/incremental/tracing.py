"""A program that notes who looks at what, so that a result can be kept as long as nothing that it read has changed;
and specs of an earlier run, which are built again only when somebody looks into them."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from avactl.kinds import registry
from avactl.kinds.program import Item, Program
from avactl.source.document import Document, Locator

Key = tuple[str, str, str]
"""Kind, team or "", name."""
Atom = str | tuple[str, ...]
"""Something that can be read of a program: which specs of a kind there are and where they go (the kind), what stands in
one spec, or that it is not there (its key), what was derived from one (`("=", function, *key)`), what was memoised
(`("memo", name)`), what a file holds (`("", path)`)."""

T = TypeVar("T")


_MISSING = object()


class KeptDocument(Document):
    """A document whose value and places are read when they are asked for."""

    __slots__ = ("_locator", "data")

    def __init__(
        self, file: str, index: int, data: bytes, locator: Callable[[str], Locator], value: Any = _MISSING
    ) -> None:
        """`data` is the value in marshal's format, `locator` gives that of a file by its path: all of it share one."""
        self.file = file
        self.index = index
        self.data = data
        self._locator = locator
        if value is not _MISSING:
            self.value = value

    def __getattr__(self, name: str) -> Any:  # called for slots that are not filled yet
        if name == "value":
            self.value = marshal.loads(self.data)  # noqa: S302 - plain data out of our own private folder
            return self.value
        if name == "locator":
            self.locator = self._locator(self.file)
            return self.locator
        raise AttributeError(name)


class TracedItem(Item):
    """A spec that tells its program when somebody looks into it; its key, origin, clusters and namespace are known."""

    __slots__ = ("_content", "_key", "_load", "_name", "_origin", "program")

    def __init__(self, key: Key, name: str, origin: tuple[str, int], load: Callable[[], tuple[Document, Any]]) -> None:
        self._key = key
        self._name = name
        self._origin = origin
        self._load = load
        self._content: tuple[Document, Any] | None = None
        self.program: TracedProgram | None = None

    def _look(self) -> tuple[Document, Any]:
        if self.program is not None:
            self.program.reads.add(self._key)
        if self._content is None:
            self._content = self._load()
        return self._content

    @property
    def doc(self) -> Document:  # type: ignore[override]
        return self._look()[0]

    @property
    def resource(self) -> Any:  # type: ignore[override]
        return self._look()[1]

    @property
    def spec(self) -> Any:  # a hundred times a spec: no calls in between
        if self.program is not None:
            self.program.reads.add(self._key)
        return (self._content or self._look())[1].spec

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
    def origin(self) -> tuple[str, int]:
        return self._origin

    @property
    def key(self) -> Key:
        return self._key


class TracedProgram(Program):
    """A program that notes what is read of it, also through what was memoised before."""

    def __init__(self, items: Iterable[TracedItem], read_file: Callable[[str], bytes | None]) -> None:
        self.reads: set[Atom] = set()
        """What was read since the tracing began."""
        self.derived: dict[tuple[str, Key], tuple[Any, frozenset[Atom]]] = {}
        """What was derived from specs, by function and spec: the value, and what was read."""
        self.memos: dict[Atom, frozenset[Atom]] = {}
        """What was read for memoised values."""
        self._memo_atoms: dict[Any, Atom] = {}
        self._clusters: dict[str, tuple[Key, Any]] = {}
        self._read_raw = read_file
        self._listed: list[Item] = []
        traced = list(items)
        super().__init__(traced, self._read_traced)
        for item in traced:
            item.program = self

    def trace(self, run: Callable[[], T]) -> tuple[T, frozenset[Atom]]:
        """The result of a function, and what it read of the program."""
        outer, self.reads = self.reads, set()
        try:
            return run(), frozenset(self.reads)
        finally:
            self.reads = outer

    def _read_traced(self, path: str) -> bytes | None:
        self.reads.add(("", path))
        return self._read_raw(path)

    @property
    def items(self) -> list[Item]:
        self.reads.update(registry.names())
        return self._listed

    @items.setter
    def items(self, items: list[Item]) -> None:
        self._listed = items

    def of(self, kind: str) -> list[Item]:
        self.reads.add(kind)
        return super().of(kind)

    def find(self, kind: str, name: str, team: str | None = None) -> Item | None:
        item = super().find(kind, name, team)
        if team:
            self.reads.add((kind, team, name))
        if item is None or item.team is None:
            self.reads.add((kind, "", name))
        return item

    def cluster_spec(self, name: str) -> Any:
        # Every object asks for it.
        found = self._clusters.get(name)
        if found is None:
            cluster = self.find_cluster(name)
            if cluster is None:
                return super().cluster_spec(name)
            found = self._clusters[name] = (cluster.key, cluster.spec)
        key, spec = found
        self.reads.add(key)
        return spec

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        atom = self._memo_atoms.get(key)
        if atom is None:
            atom = self._memo_atoms[key] = ("memo", repr(key))
            self._memo[key], self.memos[atom] = self.trace(make)
        self.reads.add(atom)
        return self._memo[key]

    def derive(self, item: Item, make: Callable[[Item, Program], T]) -> T:
        name = f"{make.__module__}:{make.__qualname__}"
        self.reads.add(("=", name, *item.key))
        found = self.derived.get((name, item.key))
        if found is None:
            found = self.derived[name, item.key] = self.trace(lambda: make(item, self))
        value: T = found[0]
        return value
