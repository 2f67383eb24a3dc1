"""Records that the compiler caches between runs on a repository.

Values are named tuples, built from the plain tuples on disk when a run begins; specs and diagnostics stay packed until
they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from avactl.compiler.incremental.disk import ResultStore, Table
from avactl.compiler.incremental.tracing import Dependency, SpecKey
from avactl.diagnostics import Diagnostic, Note, Reference, Span
from avactl.spec.repository.tree import Stamp

PackedDiagnostic = dict[str, Any]
"""A diagnostic as plain data."""


class ConfigRecord(NamedTuple):
    """avactl.yaml."""

    stamp: Stamp | None
    exists: bool
    include: list[str]
    exclude: list[str]
    policies: str
    """The enabled built-in policies as JSON; "" for none."""
    owners: str
    """Its `owners` as JSON; "" for none."""
    overlays: list[str]
    """Patterns of the environment's overlays; `include` is that of the environment, too."""
    other: list[str]
    """Patterns of files that are not specs of the environment; `exclude` is a part of it."""
    paths: list[str]
    """All paths that the repository must have."""


class DocumentRecord(NamedTuple):
    """One document of a spec file."""

    position: int
    """Index among the documents of its file."""
    key: SpecKey
    data: bytes
    """Its value in marshal format, because most documents are never unpacked."""
    templates: tuple[str, ...] = ()
    """Names of the templates that it extends, directly and indirectly."""


class FileRecord(NamedTuple):
    """A spec file."""

    stamp: Stamp | None
    """Stat fingerprint; None if the file must be read again."""
    digest: str
    documents: tuple[DocumentRecord, ...]
    warnings: tuple[PackedDiagnostic, ...]
    layers: tuple[tuple[int, bytes], ...] = ()
    """Templates, defaults and overlays: position and value in marshal format. `documents` are merged with them."""


class SpecRecord(NamedTuple):
    """The position of a spec in the repository and the result of resolving it."""

    file: str
    position: int
    name: str
    """Base of its object names."""
    clusters: tuple[str, ...]
    namespace: str | None


class KeptResult(NamedTuple):
    """The values of a traced computation on one spec, and its dependencies on others."""

    dependencies: frozenset[Dependency]
    values: tuple[Any, ...]


class InputRecord(NamedTuple):
    """A file that a spec references, such as a dataset manifest."""

    stamp: Stamp | None
    digest: str | None
    """Digest; None if the file does not exist."""


def pack(d: Diagnostic) -> PackedDiagnostic:
    """Return a diagnostic as plain data."""
    packed = {each.name: getattr(d, each.name) for each in fields(d)}
    notes = tuple((tuple(note.span), note.text) for note in d.notes)
    reference = None if d.reference is None else tuple(d.reference)
    return {**packed, "span": tuple(d.span), "notes": notes, "reference": reference}


def unpack(packed: PackedDiagnostic) -> Diagnostic:
    """Reverse `pack`."""
    notes = tuple(Note(Span(*place), text) for place, text in packed["notes"])
    reference = None if packed["reference"] is None else Reference(*packed["reference"])
    return Diagnostic(**{**packed, "span": Span(*packed["span"]), "notes": notes, "reference": reference})


@dataclass(slots=True)
class KeptRecord:
    """The state of a repository after the last run without errors."""

    config: dict[str, ConfigRecord] = field(default_factory=dict)
    """Settings by file name (avactl.yaml)."""
    files: dict[str, FileRecord] = field(default_factory=dict)
    specs: dict[SpecKey, SpecRecord] = field(default_factory=dict)
    checks: dict[SpecKey | str, KeptResult] = field(default_factory=dict)
    """Warnings (`PackedDiagnostic`) by spec; those of checks over all specs of a kind, by kind."""
    policies: dict[str, dict[SpecKey, KeptResult]] = field(default_factory=dict)
    """Policy warnings (`PackedDiagnostic`) by spec, below a digest of all policies."""
    objects: dict[SpecKey, KeptResult] = field(default_factory=dict)
    """Objects by spec: text with one line per object, the path of its file and, if rendered, its digest."""
    derived: dict[tuple[str, SpecKey], KeptResult] = field(default_factory=dict)
    """Values of `Program.derive` by function and spec, one each."""
    memos: dict[Hashable, frozenset[Dependency]] = field(default_factory=dict)
    """Dependencies of the values of `Program.memo` by key."""
    inputs: dict[str, InputRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, store: ResultStore) -> KeptRecord:
        """Return the record of the last run; an empty one if there is none."""
        return cls(*store.load(_typed))

    def clear(self) -> None:
        """Forget everything, so that all files are read again."""
        for each in fields(self):
            getattr(self, each.name).clear()

    def save(self, store: ResultStore) -> None:
        """Write the record for the next run."""
        store.save([getattr(self, each.name) for each in fields(self)], _plain)


def _file(value: Any) -> FileRecord:
    stamp, digest, documents, warnings, layers = value
    return FileRecord(stamp, digest, tuple(map(DocumentRecord._make, documents)), warnings, layers)


def _results(value: Any) -> dict[SpecKey, KeptResult]:
    return {key: KeptResult._make(result) for key, result in value.items()}


_TYPES: dict[str, Callable[[Any], Any]] = {
    "config": ConfigRecord._make,
    "files": _file,
    "specs": SpecRecord._make,
    "checks": KeptResult._make,
    "policies": _results,
    "objects": KeptResult._make,
    "derived": KeptResult._make,
    "inputs": InputRecord._make,
}


def _typed(tables: list[Table]) -> list[Table]:
    """Return tables of plain data with their values as named tuples."""
    found = []
    for each, table in zip(fields(KeptRecord), tables, strict=True):
        make = _TYPES.get(each.name)
        found.append({key: make(value) for key, value in table.items()} if make else table)
    return found


class PlainDependencies:
    """Sets of dependencies as plain data for marshal; equal sets are one object, written once."""

    def __init__(self) -> None:
        self._sets: dict[frozenset[Dependency], frozenset[Any]] = {}
        self._members: dict[Dependency, tuple[Any, ...]] = {}

    def __call__(self, dependencies: frozenset[Dependency]) -> frozenset[Any]:
        found = self._sets.get(dependencies)
        if found is None:
            members = self._members
            for each in dependencies:
                if each not in members:
                    members[each] = tuple(each)
            found = self._sets[dependencies] = frozenset([members[each] for each in dependencies])
        return found


def _plain(tables: list[Table]) -> list[Table]:
    """Return tables of named tuples as plain data."""

    def results(table: Table) -> Table:
        return {key: (dependencies(result.dependencies), result.values) for key, result in table.items()}

    config, files, specs, checks, policies, objects, derived, memos, inputs = tables
    dependencies = PlainDependencies()
    return [
        {key: tuple(value) for key, value in config.items()},
        {
            path: (file.stamp, file.digest, tuple(map(tuple, file.documents)), file.warnings, file.layers)
            for path, file in files.items()
        },
        {key: tuple(value) for key, value in specs.items()},
        results(checks),
        {key: results(value) for key, value in policies.items()},
        results(objects),
        results(derived),
        {key: dependencies(value) for key, value in memos.items()},
        {key: tuple(value) for key, value in inputs.items()},
    ]
