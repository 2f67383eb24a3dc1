"""Templates, defaults and overlays in an incremental compile: specs are kept merged with them."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from avactl.compiler.incremental.tracing import KeptDocument, SpecKey
from avactl.compiler.layers.recognition import declares_layer, extends_template, is_defaults, is_template, name_of

if TYPE_CHECKING:
    from avactl.compiler.incremental.records import DocumentRecord, FileRecord
    from avactl.compiler.layers.declarations import Declarations
    from avactl.diagnostics import Diagnostic
    from avactl.policy.owners import Owners
    from avactl.spec.documents.document import Document, Locator
    from avactl.spec.repository.tree import DirTree


class Layers:
    """The templates, defaults and overlays of a repository, compared with those of the last run."""

    def __init__(
        self,
        tree: DirTree,
        files: Mapping[str, FileRecord],
        locator: Callable[[str], Locator],
        overlays: Collection[str],
    ) -> None:
        """`files` are those of this run, `overlays` the paths of the environment's overlays, in order."""
        self.overlays = overlays
        self._tree = tree
        self._files = files
        self._locator = locator
        self._declared: Declarations | None = None

    def among(self, path: str, documents: Sequence[KeptDocument]) -> Sequence[KeptDocument]:
        """Return the documents of a file that are no specs."""
        return documents if path in self.overlays else [each for each in documents if declares_layer(each.value)]

    def touched(self, old: Mapping[str, FileRecord], parsed: Collection[str]) -> bool:
        """Return True if any of them may differ from those of the last run, whose files are `old`."""
        return any(self._files[path].layers for path in parsed) or any(
            file.layers and (path not in self._files or path in parsed) for path, file in old.items()
        )

    def affected(self, old: Mapping[str, FileRecord], parsed: Collection[str]) -> list[str] | None:
        """Return the unchanged files of the last run with specs that may inherit from what changed; None for all.

        All layers of a changed file count as changed: warnings of specs that inherit from them name its lines.
        """
        defaults: set[tuple[str, str]] = set()
        templates: set[tuple[str, str]] = set()
        targets: set[SpecKey] = set()
        paths = {*parsed, *(path for path in old if path not in self._files)}
        for path in paths:
            for file in (old.get(path), self._files.get(path)):
                for _, data in file.layers if file is not None else ():
                    value = marshal.loads(data)  # noqa: S302 - plain data out of our own private folder
                    kind, team, name = name_of(value)
                    if is_defaults(value):
                        spec = value.get("spec")
                        if not isinstance(spec, dict):
                            return None
                        defaults.update((each, team) for each in spec)
                    else:  # a template, or an overlay of a spec or template
                        templates.add((kind, name))
                        targets.add((kind, team, name))

        def inherits(each: DocumentRecord) -> bool:
            kind, team, _ = each.key
            return (
                each.key in targets
                or (kind, "") in defaults
                or (kind, team) in defaults
                or any((kind, name) in templates for name in each.templates)
            )

        return [
            path
            for path, file in old.items()
            if path in self._files and path not in parsed and any(map(inherits, file.documents))
        ]

    @property
    def declared(self) -> Declarations:
        """All of them, unpacked on first access."""
        if self._declared is None:
            from avactl.compiler.layers.declarations import Declarations

            found: dict[bool, list[Document]] = {False: [], True: []}
            for path, file in self._files.items():
                for position, data in file.layers:
                    document = KeptDocument(path, position, data, self._locator)
                    found[path in self.overlays].append(document)
            self._declared = Declarations(found[False], found[True])
        return self._declared

    @cached_property
    def _exist(self) -> bool:
        # Asked for every document, and first when all files are read.
        return any(file.layers for file in self._files.values())

    def __bool__(self) -> bool:
        return self._exist

    def problems(self, names: Iterable[SpecKey], owners: Owners) -> list[Diagnostic]:
        """Return the problems of all of them; `names` are those of all specs."""
        from avactl.compiler.layers.check import check_declarations, unmatched_layers

        return [
            *check_declarations(self.declared, (owners,) if owners else ()),
            *unmatched_layers(self.declared, names),
        ]

    def merged(self, document: KeptDocument) -> Document | None:
        """Return a spec merged with what it inherits; None if it has problems."""
        if not self and not extends_template(document.value):
            return document
        from avactl.compiler.layers.document import LayeredDocument

        problems: list[Diagnostic] = []
        found = self.declared.layered(document, problems)
        if isinstance(found, LayeredDocument) and self.overlays:
            from avactl.compiler.layers.check import without_effect

            problems += without_effect(found)
        return None if problems else found

    def locator(self, position: int, path: str) -> Locator:
        """Return the locator of a spec of the last run, which was kept merged."""
        from avactl.spec.documents.yaml import load_yaml

        if not self:
            return self._locator(path)
        documents, _ = load_yaml(path, self._tree.read(path))
        own = next(each for each in documents if each.index == position)
        return (self.declared.layered(own, []) or own).locator


def packed(document: Document) -> bytes:
    """Return the value of a document in marshal format."""
    return document.data if isinstance(document, KeptDocument) else marshal.dumps(document.value)


def templates_of(document: Document) -> tuple[str, ...]:
    """Return the names of the templates that a merged spec extends, directly and indirectly."""
    if isinstance(document, KeptDocument):
        return ()
    from avactl.compiler.layers.document import LayeredDocument

    layers = document.layers if isinstance(document, LayeredDocument) else ()
    own = (layer.document.value for layer in layers)
    return tuple(name_of(value)[2] for value in own if is_template(value))
