"""The second step of a compile with kept results: which specs there are, where they go, and which are not as they
were. Specs that are as they were are built again only when somebody looks into them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from avactl.compiler.incremental.loading import IrregularError, Reading
from avactl.compiler.incremental.records import Doc, Place
from avactl.compiler.incremental.tracing import KeptDocument, Key, TracedItem, TracedProgram
from avactl.kinds import registry
from avactl.kinds.program import STRUCTURE

if TYPE_CHECKING:
    from avactl.kinds.program import Item
    from avactl.source.document import Document


class Resolving:
    """The specs of a repository, against those of the last run."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.old = reading.old
        self.new = reading.new
        self.begun: TracedProgram | None = None
        """The program, if anybody needed it."""

    @property
    def program(self) -> TracedProgram:
        """The program."""
        if self.begun is None:
            self.begun = TracedProgram(self._kept_items(), self.reading.input)
        return self.begun

    def resolve(self) -> None:
        """Find out where every spec stands and goes. Raises IrregularError where a spec has an error."""
        parsed, files = self.reading.parsed, self.old.files
        touched = parsed.keys() | (files.keys() - self.new.files.keys())
        if not touched and self.old.places:
            self.new.places = self.old.places
            return
        before = {key for path in touched if path in files for _, key, _ in files[path][2]}
        items = self._new_items()
        after = {item.key for item in items}
        # A name that is gone could be missed by any spec, and the structure places all of them.
        if not self.old.places or before - after or not STRUCTURE.isdisjoint(key[0] for key in after | before):
            self._resolve_all(items, before)
        else:
            self._resolve_few(items, before)
        old, new = self.old.places, self.new.places
        moved = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        self.reading.changed.update(before, after, moved, {key[0] for key in moved})

    def _new_items(self) -> list[Item]:
        """The specs of the files that were parsed."""
        from avactl.compiler.validate import validate_document
        from avactl.kinds.program import Item

        found: list[Item] = []
        for path, documents in self.reading.parsed.items():
            docs: list[Doc] = []
            for document in documents:
                resource = validate_document(document)
                if isinstance(resource, list):
                    raise IrregularError
                item = Item(document, resource)
                found.append(item)
                docs.append((document.index, item.key, document.data))
            stamp, content, _, warnings = self.new.files[path]
            self.new.files[path] = (stamp, content, tuple(docs), warnings)
        return found

    def _resolve_all(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.pass_state import State
        from avactl.compiler.resolve import resolve

        kept = [item for item in self._kept_items(shipped=False) if item.key not in before]
        resources = tuple((item.doc, item.resource) for item in [*kept, *items])
        state = resolve(State(self.reading.tree, resources=resources))
        if state.program is None or state.diagnostics or state.program.broken:
            raise IrregularError
        traced = [_traced(item) for item in state.program.items]
        self.begun = TracedProgram(traced, self.reading.input)
        self.new.places = {item.key: _place(item) for item in traced}

    def _resolve_few(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.resolve import place, references_answered

        kept = [item for item in self._kept_items() if item.key not in before]
        traced = [_traced(item) for item in items]
        program = self.begun = TracedProgram([*kept, *traced], self.reading.input)
        self.new.places = {key: found for key, found in self.old.places.items() if key not in before}
        names = {(key[0], key[2]) for key in (*self.new.places, *(item.key for item in items))}
        for item in traced:
            answered = references_answered(item, names, program, frozenset(), [])
            if item.key in self.new.places or not answered or not place(item, program, []):
                raise IrregularError
            self.new.places[item.key] = _place(item)

    def _kept_items(self, shipped: bool = True) -> list[TracedItem]:
        """The specs of the last run, in files that are as they were, or of the library."""
        found = [
            self._kept(key, partial(self._load, path, at, key[0], value))
            for path, (_, _, docs, _) in self.old.files.items()
            if path in self.new.files and path not in self.reading.parsed
            for at, key, value in docs
        ]
        if shipped:
            library = [key for key, place in self.old.places.items() if place[0] not in self.old.files]
            found += [self._kept(key, partial(_load_shipped, key[2])) for key in library]
        return found

    def _kept(self, key: Key, load: Callable[[], tuple[Document, Any]]) -> TracedItem:
        file, at, name, clusters, namespace = self.old.places[key]
        item = TracedItem(key, name, (file, at), load)
        item.clusters, item.namespace = clusters, namespace
        return item

    def _load(self, path: str, at: int, kind: str, value: bytes) -> tuple[Document, Any]:
        document = KeptDocument(path, at, value, self.reading.locator)
        model = registry.kind(kind).model
        return document, model.model_validate(document.value, by_alias=True, by_name=False)


def _place(item: TracedItem) -> Place:
    return (*item.origin, item.name, item.clusters, item.namespace)


def _traced(item: Item) -> TracedItem:
    content = (item.doc, item.resource)
    traced = TracedItem(item.key, item.name, item.origin, lambda: content)
    traced.clusters, traced.namespace = item.clusters, item.namespace
    return traced


def _load_shipped(name: str) -> tuple[Document, Any]:
    from avactl.compiler.resolve import shipped

    return shipped(name)
