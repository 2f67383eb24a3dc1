"""What the compiler keeps between two runs on a repository: plain data, so that nothing is built when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from avactl.compiler.incremental.disk import Store
from avactl.compiler.incremental.tracing import Atom, Key
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.source.tree import Stamp

Packed = dict[str, Any]
"""A diagnostic."""
Doc = tuple[int, Key, bytes]
"""A document of a file: its index, its key, and its value in marshal's format, since most are not looked at again."""
File = tuple[Stamp | None, str, tuple[Doc, ...], tuple[Packed, ...]]
"""A spec file: how it looked (None: look into it again), digest of its content, its documents, its warnings."""
Place = tuple[str, int, str, tuple[str, ...], str | None]
"""Where a spec stands (file, index), its name for objects, and where resolving put it (clusters, namespace)."""
Result = tuple[frozenset[Atom], tuple[Any, ...]]
"""What was read beside the spec itself, and what was found."""


def pack(d: Diagnostic) -> Packed:
    """A diagnostic as plain data."""
    packed = {each.name: getattr(d, each.name) for each in fields(d)}
    notes = tuple((tuple(note.span), note.text) for note in d.notes)
    return {**packed, "span": tuple(d.span), "notes": notes}


def unpack(packed: Packed) -> Diagnostic:
    """A diagnostic from plain data."""
    notes = tuple(Note(Span(*place), text) for place, text in packed["notes"])
    return Diagnostic(**{**packed, "span": Span(*packed["span"]), "notes": notes})


@dataclass(slots=True)
class Record:
    """Everything about the last run without errors."""

    config: dict[str, tuple[Stamp | None, bool, list[str], list[str], str]] = field(default_factory=dict)
    """avactl.yaml: how it looked, whether it is there, include, exclude, policies as JSON or ""."""
    files: dict[str, File] = field(default_factory=dict)
    places: dict[Key, Place] = field(default_factory=dict)
    checks: dict[Key | str, Result] = field(default_factory=dict)
    """Warnings (`Packed`) of each spec; of the checks over all specs of a kind by its name."""
    policies: dict[str, dict[Key, Result]] = field(default_factory=dict)
    """What policies warn of (`Packed`) by spec; of all policies together by a digest of what they demand."""
    objects: dict[Key, Result] = field(default_factory=dict)
    """Objects of each spec: one text, a line an object, with the path of its file and, if it was made, its digest."""
    derived: dict[tuple[str, Key], Result] = field(default_factory=dict)
    """What functions derived from specs (`Program.derive`), one value each."""
    memos: dict[Atom, frozenset[Atom]] = field(default_factory=dict)
    """What was read for values that many results share (`Program.memo`)."""
    inputs: dict[str, tuple[Stamp | None, str | None]] = field(default_factory=dict)
    """How other files that were read looked, and their digest; None of one that was not there."""

    @classmethod
    def load(cls, store: Store) -> Record:
        """What was kept, empty if nothing was."""
        return cls(*store.load())

    def save(self, store: Store) -> None:
        """Keep it for the next run."""
        store.save([getattr(self, each.name) for each in fields(self)])
