"""What the compiler keeps between two runs on a repository, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.compiler.kept import Atom, Key
from avactl.compiler.store import Store
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.source.tree import Stamp

Packed = tuple[Any, ...]
"""A diagnostic as plain data."""


def pack(d: Diagnostic) -> Packed:
    notes = tuple((tuple(note.span), note.text) for note in d.notes)
    return d.code, d.message, tuple(d.span), d.severity, d.label, d.hint, notes


def unpack(packed: Packed) -> Diagnostic:
    code, message, span, severity, label, hint, notes = packed
    pairs = tuple(Note(Span(*place), text) for place, text in notes)
    return Diagnostic(code, message, Span(*span), severity, label, hint, pairs)


class Doc(NamedTuple):
    """A document of a file."""

    at: int
    """Index in the file."""
    key: Key
    name: str
    """Name that objects are derived from."""
    value: bytes
    """In marshal's format: most are not looked at again."""


class File(NamedTuple):
    """A spec file."""

    stamp: Stamp | None
    """None: look into it again."""
    digest: str
    docs: tuple[Doc, ...]
    warnings: tuple[Packed, ...]


class Place(NamedTuple):
    """Where a spec stands, and where resolving put it."""

    file: str
    at: int
    """Index in the file."""
    clusters: tuple[str, ...]
    namespace: str | None


class Object(NamedTuple):
    """An object of a spec."""

    id: tuple[str, ...]
    """As `ObjectId`."""
    path: str
    digest: str
    """Of the file; both are "" where none was emitted."""


class Result(NamedTuple):
    """What a function of a kind gave, and which set of things it read."""

    reads: frozenset[Atom]
    found: tuple[Any, ...]


@dataclass(slots=True)
class Record:
    """Everything about the last run without errors."""

    config: tuple[Stamp | None, bool, list[str], list[str]] | None = None
    """avactl.yaml: stamp, whether it is there, include, exclude."""
    files: dict[str, File] = field(default_factory=dict)
    places: dict[Key, Place] = field(default_factory=dict)
    checks: dict[Key | str, Result] = field(default_factory=dict)
    """Warnings of each spec; of the checks over all specs of a kind by its name."""
    objects: dict[Key, Result] = field(default_factory=dict)
    inputs: dict[str, tuple[Stamp | None, str | None]] = field(default_factory=dict)
    """Stamp and digest of other files that were read; the digest is None of one that is not there."""

    @classmethod
    def load(cls, store: Store) -> Record:
        """What was kept, empty if nothing was."""
        value = store.load()
        if value is None:
            return cls()
        config, files, places, checks, objects, inputs = value
        return cls(
            config,
            {
                path: File(stamp, digest, tuple(Doc(*doc) for doc in docs), warnings)
                for path, (stamp, digest, docs, warnings) in files.items()
            },
            {key: Place(*place) for key, place in places.items()},
            {key: Result(*result) for key, result in checks.items()},
            {key: Result(reads, tuple(Object(*found) for found in all)) for key, (reads, all) in objects.items()},
            inputs,
        )

    def save(self, store: Store) -> None:
        """Keep it for the next run."""
        store.save(
            (
                self.config,
                {
                    path: (stamp, digest, tuple(map(tuple, docs)), warnings)
                    for path, (stamp, digest, docs, warnings) in self.files.items()
                },
                {key: tuple(place) for key, place in self.places.items()},
                {key: tuple(result) for key, result in self.checks.items()},
                {key: (reads, tuple(map(tuple, found))) for key, (reads, found) in self.objects.items()},
                self.inputs,
            )
        )
