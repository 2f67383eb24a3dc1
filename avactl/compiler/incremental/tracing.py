"""A program that records what each result depends on, and specs of the last run that are parsed on first access.

A result is valid as long as none of its dependencies has changed.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

from avactl.program import registry
from avactl.program.program import Item, Program
from avactl.spec.documents.document import Document, Locator

SpecKey = tuple[str, str, str]
"""Kind, team or "", and name of a spec. As a dependency: its content, or that it does not exist."""


class SpecsOfKind(NamedTuple):
    """Dependency on the set of specs of a kind, and on their clusters and namespaces."""

    kind: str
    source: str = "kind"


class DerivedValue(NamedTuple):
    """Dependency on a value that `Program.derive` computed from one spec."""

    function: str
    """`module:name` of the function."""
    spec: SpecKey
    source: str = "derived"


class MemoisedValue(NamedTuple):
    """Dependency on a value of `Program.memo`, by its key."""

    key: Hashable
    source: str = "memo"


class FileContent(NamedTuple):
    """Dependency on a non-spec file, or on its absence."""

    path: str
    source: str = "file"


Dependency = SpecKey | SpecsOfKind | DerivedValue | MemoisedValue | FileContent
"""A part of a program that a result may depend on.

Dependencies of different types are never equal because of `source`, so sets read from disk can contain plain tuples.
"""

P = TypeVar("P")
T = TypeVar("T")


_MISSING = object()


class KeptDocument(Document):
    """A document of the last run whose value and locator are loaded on first access."""

    __slots__ = ("_locator", "data")

    def __init__(
        self, file: str, index: int, data: bytes, locator: Callable[[str], Locator], value: Any = _MISSING
    ) -> None:
        """`data` is the value in marshal's format; `locator` returns the locator that a file's documents share."""
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
    """A spec that records accesses to its content in its program, except key, origin, clusters and namespace."""

    __slots__ = ("_content", "_key", "_load", "_name", "_origin", "program")

    def __init__(
        self, key: SpecKey, name: str, origin: tuple[str, int], load: Callable[[], tuple[Document, Any]]
    ) -> None:
        self._key = key
        self._name = name
        self._origin = origin
        self._load = load
        self._content: tuple[Document, Any] | None = None
        self.program: TracedProgram | None = None

    def _read(self) -> tuple[Document, Any]:
        if self.program is not None:
            self.program.reads.add(self._key)
        if self._content is None:
            self._content = self._load()
        return self._content

    @property
    def doc(self) -> Document:  # type: ignore[override]
        return self._read()[0]

    @property
    def resource(self) -> Any:  # type: ignore[override]
        return self._read()[1]

    @property
    def spec(self) -> Any:  # a hundred times a spec: no calls in between
        if self.program is not None:
            self.program.reads.add(self._key)
        return (self._content or self._read())[1].spec

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
    def key(self) -> SpecKey:
        return self._key


class TracedProgram(Program):
    """A program that records accesses, directly or through derived and memoised values."""

    def __init__(self, items: Iterable[TracedItem], read_file: Callable[[str], bytes | None]) -> None:
        self.reads: set[Dependency] = set()
        """Dependencies since the innermost `trace` began."""
        self.derived: dict[tuple[str, SpecKey], tuple[Any, frozenset[Dependency]]] = {}
        """Derived values by function and spec, with their dependencies."""
        self.memos: dict[Hashable, frozenset[Dependency]] = {}
        """Dependencies of memoised values by key."""
        self._memoised: dict[Hashable, MemoisedValue] = {}
        self._clusters: dict[str, tuple[SpecKey, Any]] = {}
        self._read_raw = read_file
        self._listed: list[Item] = []
        traced = list(items)
        super().__init__(traced, self._read_traced)
        for item in traced:
            item.program = self

    def trace(self, run: Callable[[], T]) -> tuple[T, frozenset[Dependency]]:
        """Call a function and return its result with its dependencies."""
        outer, self.reads = self.reads, set()
        try:
            return run(), frozenset(self.reads)
        finally:
            self.reads = outer

    def _read_traced(self, path: str) -> bytes | None:
        self.reads.add(FileContent(path))
        return self._read_raw(path)

    @property
    def items(self) -> list[Item]:
        self.reads.update(map(SpecsOfKind, registry.kind_names()))
        return self._listed

    @items.setter
    def items(self, items: list[Item]) -> None:
        self._listed = items

    def of(self, kind: str) -> list[Item]:
        self.reads.add(SpecsOfKind(kind))
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

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        dependency = self._memoised.get(key)
        if dependency is None:
            dependency = self._memoised[key] = MemoisedValue(key)
            self._memo[key], self.memos[key] = self.trace(make)
        self.reads.add(dependency)
        value: T = self._memo[key]
        return value

    def derive(self, item: Item[P], make: Callable[[Item[P], Program], T]) -> T:
        name = f"{make.__module__}:{make.__qualname__}"
        self.reads.add(DerivedValue(name, item.key))
        found = self.derived.get((name, item.key))
        if found is None:
            found = self.derived[name, item.key] = self.trace(lambda: make(item, self))
        value: T = found[0]
        return value
