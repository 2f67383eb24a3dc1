"""State passed from pass to pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from avactl.diagnostics import Diagnostic
from avactl.program.manifest import Manifest
from avactl.program.program import Program
from avactl.spec.documents.document import Document
from avactl.spec.repository.tree import Tree
from avactl.spec.schema.base import Resource

if TYPE_CHECKING:
    from avactl.policy.owners import Owners
    from avactl.policy.settings import Rules


@dataclass(frozen=True, slots=True)
class PassState:
    """State of a compilation, extended by each pass; never changed in place."""

    tree: Tree
    diagnostics: tuple[Diagnostic, ...] = ()
    documents: tuple[Document, ...] = ()
    overlays: tuple[Document, ...] = ()
    """Documents of the environment's overlays; later ones win."""
    resources: tuple[tuple[Document, Resource], ...] = ()
    broken: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(kind, name) of documents that did not pass validation: references to them are not problems of their own."""
    program: Program | None = None
    owners: tuple[Owners, ...] = ()
    """`owners` of the repository and of an earlier revision of it: a spec needs all of them."""
    rules: Rules | None = None
    """The policies of the repository; None if there are none."""
    manifests: tuple[Manifest, ...] = ()

    @property
    def failed(self) -> bool:
        """True if there is an error, so that nothing may be emitted."""
        return any(d.severity == "error" for d in self.diagnostics)
