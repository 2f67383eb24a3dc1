"""Step two of an incremental compile: validate and resolve the specs that changed.

Unchanged specs keep their resolution, and are parsed again only on access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from avactl.compiler.incremental.layering import packed, templates_of
from avactl.compiler.incremental.loading import IrregularError, Loader
from avactl.compiler.incremental.records import DocumentRecord, SpecRecord
from avactl.compiler.incremental.tracing import KeptDocument, SpecKey, SpecsOfKind, TracedItem, TracedProgram
from avactl.compiler.lower import apply_patches
from avactl.compiler.selection import CONFIG_FILE
from avactl.program import registry
from avactl.program.program import STRUCTURE

if TYPE_CHECKING:
    from avactl.program.program import Item
    from avactl.spec.documents.document import Document


class Resolver:
    """The specs of a repository, compared with those of the last run."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.old = loader.old
        self.new = loader.new
        self.built: TracedProgram | None = None
        """The program, if it was needed."""

    @property
    def program(self) -> TracedProgram:
        """The resolved program, built on first access."""
        if self.built is None:
            self.built = self._program(self._kept_items())
        return self.built

    def _program(self, items: list[TracedItem]) -> TracedProgram:
        program = TracedProgram(items, self.loader.input)
        program.environment = self.loader.tree.environment
        program.with_patches = apply_patches
        return program

    def resolve(self) -> None:
        """Fill `specs` of the new record. Raises IrregularError if a spec has an error."""
        parsed, files = self.loader.parsed, self.old.files
        touched = parsed.keys() | (files.keys() - self.new.files.keys())
        if not touched and self.old.specs:
            self.new.specs = self.old.specs
            return
        before = {each.key for path in touched if path in files for each in files[path].documents}
        items = self._new_items()
        after = {item.key for item in items}
        # Any spec may refer to a removed one, and the structure decides where all of them go.
        if not self.old.specs or before - after or not STRUCTURE.isdisjoint(kind for kind, _, _ in after | before):
            self._resolve_all(items, before)
        else:
            self._resolve_few(items, before)
        if self.loader.layers and (self.loader.layered_anew or before - after or not self.old.specs):
            self._check_layers()
        old, new = self.old.specs, self.new.specs
        moved = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        self.loader.changed.update(before, after, moved, {SpecsOfKind(kind) for kind, _, _ in moved})

    def _check_layers(self) -> None:
        """Raise IrregularError if a template, defaults or an overlay has a problem."""
        from avactl.policy.owners import from_json

        config = self.loader.new.config[CONFIG_FILE]
        if self.loader.layers.problems(self.new.specs, from_json(config.owners)):
            raise IrregularError

    def _new_items(self) -> list[Item]:
        """Return the specs of the files that were parsed, and record their documents."""
        from avactl.compiler.validate import validate_document
        from avactl.program.program import Item

        not_owned, layers = self.loader.not_owned(), self.loader.layers
        found: list[Item] = []
        for path, documents in self.loader.parsed.items():
            records: list[DocumentRecord] = []
            for own in documents:
                document = layers.merged(own)
                if document is None:
                    raise IrregularError
                resource = validate_document(document)
                if isinstance(resource, list) or not_owned(document, resource):
                    raise IrregularError
                item = Item(document, resource)
                found.append(item)
                records.append(DocumentRecord(document.index, item.key, packed(document), templates_of(document)))
            self.new.files[path] = self.new.files[path]._replace(documents=tuple(records))
        return found

    def _resolve_all(self, items: list[Item], before: Collection[SpecKey]) -> None:
        from avactl.compiler.pass_state import PassState
        from avactl.compiler.resolve import resolve

        kept = [item for item in self._kept_items(shipped=False) if item.key not in before]
        resources = tuple((item.doc, item.resource) for item in [*kept, *items])
        state = resolve(PassState(self.loader.tree, resources=resources))
        if state.program is None or state.diagnostics or state.program.broken:
            raise IrregularError
        traced = [_traced(item) for item in state.program.items]
        self.built = self._program(traced)
        self.new.specs = {item.key: _record(item) for item in traced}

    def _resolve_few(self, items: list[Item], before: Collection[SpecKey]) -> None:
        from avactl.compiler.resolve import place_item, unknown_references

        kept = [item for item in self._kept_items() if item.key not in before]
        traced = [_traced(item) for item in items]
        program = self.built = self._program([*kept, *traced])
        self.new.specs = {key: found for key, found in self.old.specs.items() if key not in before}
        names = {(kind, name) for kind, _, name in (*self.new.specs, *(item.key for item in items))}
        for item in traced:
            if item.key in self.new.specs or unknown_references(item, names) or not place_item(item, program, []):
                raise IrregularError
            self.new.specs[item.key] = _record(item)

    def _kept_items(self, shipped: bool = True) -> list[TracedItem]:
        """Return the specs of the last run in unchanged files and, with `shipped`, in the library."""
        found = [
            self._kept(each.key, partial(self._load, path, each))
            for path, file in self.old.files.items()
            if path in self.new.files and path not in self.loader.parsed
            for each in file.documents
        ]
        if shipped:
            library = [key for key, spec in self.old.specs.items() if spec.file not in self.old.files]
            found += [self._kept(key, partial(_load_shipped, key)) for key in library]
        return found

    def _kept(self, key: SpecKey, load: Callable[[], tuple[Document, Any]]) -> TracedItem:
        spec = self.old.specs[key]
        item = TracedItem(key, spec.name, (spec.file, spec.position), load)
        item.clusters, item.namespace = spec.clusters, spec.namespace
        return item

    def _load(self, path: str, record: DocumentRecord) -> tuple[Document, Any]:
        locator = partial(self.loader.layers.locator, record.position)
        document = KeptDocument(path, record.position, record.data, locator)
        kind, _, _ = record.key
        model = registry.get_model(kind)
        return document, model.model_validate(document.value, by_alias=True, by_name=False)


def _record(item: TracedItem) -> SpecRecord:
    return SpecRecord(*item.origin, item.name, item.clusters, item.namespace)


def _traced(item: Item) -> TracedItem:
    content = (item.doc, item.resource)
    traced = TracedItem(item.key, item.name, item.origin, lambda: content)
    traced.clusters, traced.namespace = item.clusters, item.namespace
    return traced


def _load_shipped(key: SpecKey) -> tuple[Document, Any]:
    from avactl.compiler.resolve import shipped_machine_type

    _, _, name = key
    return shipped_machine_type(name)
