"""What the passes hand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from avactl.diagnostics import Diagnostic
from avactl.kinds.base import Resource
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Program
from avactl.source.document import Document

if TYPE_CHECKING:
    from avactl.compiler.policy_pass import Rules


class Tree(Protocol):
    """A repository's files: a directory, a git revision, or memory."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """What `paths` last left out though it may hold specs, by path: directories and links, and why."""
        ...

    def paths(self) -> list[str]:
        """Paths of all files from the root, with `/`."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file. Raises OSError."""
        ...

    def read(self, path: str) -> bytes:
        """Content of a file. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class State:
    """Grows from pass to pass; nothing in it is changed in place."""

    tree: Tree
    diagnostics: tuple[Diagnostic, ...] = ()
    documents: tuple[Document, ...] = ()
    resources: tuple[tuple[Document, Resource], ...] = ()
    broken: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(kind, name) of documents that did not pass validation: references to them are not problems of their own."""
    program: Program | None = None
    rules: Rules | None = None
    """The policies of the repository; None where there are none."""
    manifests: tuple[Manifest, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether an error was found, so that nothing may be emitted."""
        return any(d.severity == "error" for d in self.diagnostics)
