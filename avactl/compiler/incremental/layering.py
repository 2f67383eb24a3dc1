"""Templates, defaults and overlays in an incremental compile: specs are kept merged with them."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from avactl.compiler.incremental.tracing import KeptDocument, SpecKey
from avactl.compiler.layers.recognition import declares, extends

if TYPE_CHECKING:
    from avactl.compiler.incremental.records import FileRecord
    from avactl.compiler.layers.declarations import Declarations
    from avactl.diagnostics import Diagnostic
    from avactl.policy.owners import Owners
    from avactl.source.document import Document, Locator
    from avactl.source.tree import DirTree


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
        return documents if path in self.overlays else [each for each in documents if declares(each.value)]

    def touched(self, old: Mapping[str, FileRecord], parsed: Collection[str]) -> bool:
        """Return True if any of them may differ from those of the last run, whose files are `old`."""
        return any(self._files[path].layers for path in parsed) or any(
            file.layers and (path not in self._files or path in parsed) for path, file in old.items()
        )

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

    def __bool__(self) -> bool:
        return any(file.layers for file in self._files.values())

    def problems(self, names: Iterable[SpecKey], owners: Owners) -> list[Diagnostic]:
        """Return the problems of all of them; `names` are those of all specs."""
        from avactl.compiler.layers.check import check_declarations, unmatched

        return [*check_declarations(self.declared, (owners,) if owners else ()), *unmatched(self.declared, names)]

    def merged(self, document: KeptDocument) -> Document | None:
        """Return a spec merged with what it inherits; None if it has problems."""
        if not self and not extends(document.value):
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
        from avactl.source.yaml import load_yaml

        if not self:
            return self._locator(path)
        documents, _ = load_yaml(path, self._tree.read(path))
        own = next(each for each in documents if each.index == position)
        return (self.declared.layered(own, []) or own).locator


def packed(document: Document) -> bytes:
    """Return the value of a document in marshal format."""
    return document.data if isinstance(document, KeptDocument) else marshal.dumps(document.value)
