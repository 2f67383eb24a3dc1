"""Compiling again what changed since the last run, and nothing else.

What a run found is kept: the documents of every file, and for every spec its warnings and objects together with what
was read of the program to find them (`kept.TracedProgram` notes it). The next run reads the files that look different,
and repeats only what read something that has changed. Kept are only results without errors: whatever is wrong with a
text, a field or a reference takes the plain way through all passes, and is told as if nothing were kept.
"""

from __future__ import annotations

import gc
import marshal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from avactl.compiler.defect import debugging
from avactl.compiler.kept import EVERYTHING, Atom, KeptDocument, KeptItem, Key, TracedProgram
from avactl.compiler.record import Doc, File, Object, Place, Record, Result, pack, unpack
from avactl.compiler.selection import CONFIG_FILE, spec_files
from avactl.compiler.store import Store
from avactl.diagnostics import Diagnostic, sort_diagnostics
from avactl.kinds import registry
from avactl.source.tree import DirTree, Stamp

if TYPE_CHECKING:
    from avactl.compiler.driver import Compilation
    from avactl.kinds.manifest import Manifest
    from avactl.kinds.program import Item
    from avactl.source.document import Document

Emit = Callable[["Manifest"], tuple[str, str]]
"""The path and the text of a manifest's file."""

_STRUCTURE = frozenset(["Cluster", "MachineType", "NodePool", "Team"])
"""Kinds that the resolve pass looks at when it resolves other specs."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compile tells: problems, specs, and the files of the objects."""

    diagnostics: tuple[Diagnostic, ...]
    kinds: dict[str, int]
    """How many specs there are of each kind, shipped machine types in use among them."""
    files: dict[str, str]
    """SHA-256 of each file by its path; empty where there are errors, or nothing to emit with."""
    texts: Callable[[Collection[str]], Mapping[str, str]]
    """Contents of files by their paths."""

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return not any(d.severity == "error" for d in self.diagnostics)


def compile_cached(tree: DirTree, *, use_cache: bool = True, emit: Emit | None = None) -> Compiled:
    """Compile a repository; problems are in the result, never raised. `emit` makes the files of the objects."""
    collecting = gc.isenabled()
    gc.disable()  # as in the driver
    try:
        # Kinds of plug-ins are not part of the store's version.
        if use_cache and not registry.added():
            return _Run(tree, emit).run()
        return _plain(tree, emit)
    finally:
        if collecting:
            gc.enable()


def _plain(tree: DirTree, emit: Emit | None) -> Compiled:
    from avactl.compiler.driver import compile_tree

    return _compiled(compile_tree(tree), emit)


def _compiled(compilation: Compilation, emit: Emit | None) -> Compiled:
    texts = dict(emit(manifest) for manifest in compilation.manifests) if emit else {}
    files = {path: _digest(text.encode()) for path, text in texts.items()}
    kinds = _count(item.key for item in compilation.program.items)
    return Compiled(compilation.diagnostics, kinds, files, lambda paths: {path: texts[path] for path in paths})


def _count(keys: Iterable[Key]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for kind, _, _ in keys:
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _trusted(stamp: Stamp | None) -> Stamp | None:
    """A stamp, unless the file changed so shortly before that it could change again and look the same.

    Where times end in whole seconds, the file system's clock may be as coarse as two (FAT).
    """
    if stamp is None:
        return None
    age = time.time_ns() - max(stamp[2], stamp[3])
    return stamp if age > (20_000_000 if stamp[2] % 1_000_000_000 else 2_000_000_000) else None


class _Irregular(Exception):  # noqa: N818 - control flow inside of this module
    """Something that is told by the plain way through the passes."""


class _Run:
    """One compile with what the last one kept."""

    def __init__(self, tree: DirTree, emit: Emit | None) -> None:
        self.tree = tree
        self.emit = emit
        self.store = Store("compile", tree.key)
        self.old = Record.load(self.store)
        self.new = Record()
        self.dirty = False
        self.parsed: dict[str, list[Document]] = {}
        """Documents of the files that are not as they were."""
        self.changed: set[Any] = set()
        """Everything that is not as it was: `Atom`s."""
        self.alive: dict[frozenset[Atom], bool] = {}
        self.shared: dict[frozenset[Atom], frozenset[Atom]] = {}
        self.texts: dict[str, str] = {}
        self._program: TracedProgram | None = None

    def run(self) -> Compiled:
        stamps = self.tree.stamps()
        chosen = self._configuration()
        paths = spec_files(*chosen, stamps) if chosen else []
        if not paths or any(path.endswith(".py") for path in paths):
            return _plain(self.tree, self.emit)
        try:
            self._read(paths, stamps)
            self._look_at_inputs()
            self._resolve()
            self._check()
            packed = [packed for result in self.new.checks.values() for packed in result.found]
            packed += [packed for file in self.new.files.values() for packed in file.warnings]
            diagnostics = tuple(sort_diagnostics(map(unpack, packed)))
            if not any(d.severity == "error" for d in diagnostics):
                self._lower()
                if self.dirty:
                    self.new.save(self.store)
        except _Irregular:
            return self._all_passes()
        except Exception:
            if debugging():
                raise
            return self._all_passes()  # which tells at which spec it happens
        files = {thing.path: thing.digest for result in self.new.objects.values() for thing in result.found}
        return Compiled(diagnostics, _count(self.new.places), files if self.emit else {}, self._texts_of)

    def _all_passes(self) -> Compiled:
        """The plain way, from the documents on."""
        from avactl.compiler.driver import PASSES, run_passes
        from avactl.compiler.state import State

        problems = tuple(unpack(packed) for file in self.new.files.values() for packed in file.warnings)
        return _compiled(run_passes(State(self.tree, problems, self._documents()), PASSES[1:]), self.emit)

    # -- what is there ---------------------------------------------------------------------------------------------

    def _configuration(self) -> tuple[list[str], list[str]] | None:
        """What belongs to the repository, by avactl.yaml; None where that has problems."""
        stamp = self.tree.stamp(CONFIG_FILE)
        kept = self.old.config
        if kept is None or (stamp is not None and kept[0] != stamp) or (stamp is None and kept[1]):
            from avactl.compiler.config import load_config

            config, problems = load_config(self.tree)
            if problems:
                return None
            kept = (_trusted(stamp), stamp is not None, list(config.include), list(config.exclude))
            self.dirty = True
        self.new.config = kept
        return kept[2], kept[3]

    def _read(self, paths: list[str], stamps: Mapping[str, Stamp]) -> None:
        """The files: as they were, or parsed anew."""
        failed = False
        for path in paths:
            stamp = stamps[path]
            file = self.old.files.get(path)
            if file is None or file.stamp != stamp:
                file = self._parse(path, stamp, file)
                failed = failed or any(packed[3] == "error" for packed in file.warnings)
                self.dirty = True
            self.new.files[path] = file
        if failed:
            raise _Irregular
        if self.old.files.keys() - self.new.files.keys():
            self.dirty = True

    def _parse(self, path: str, stamp: Stamp, old: File | None) -> File:
        from avactl.compiler.load import load_file
        from avactl.diagnostics.secrets import redacted
        from avactl.source.yaml import MAX_BYTES, load_yaml

        digest = ""
        try:
            data = self.tree.read(path) if stamp[1] <= MAX_BYTES else b""
            digest = _digest(data)
        except OSError:
            data = b""
        if old is not None and old.digest == digest:
            return old._replace(stamp=_trusted(stamp))
        # What is too large or cannot be read is told by the loader.
        documents, problems = load_yaml(path, data) if data else load_file(self.tree, path)
        self.parsed[path] = documents
        return File(_trusted(stamp), digest, (), tuple(pack(redacted(problem)) for problem in problems))

    def _look_at_inputs(self) -> None:
        """Other files that were read, such as manifests of datasets."""
        for path, (stamp, digest) in self.old.inputs.items():
            now = self.tree.stamp(path)
            if now != stamp or (now is None) != (digest is None):
                self._input(path)
                self.dirty = True
                if self.new.inputs[path][1] != digest:
                    self.changed.add(("", path))
            else:
                self.new.inputs[path] = (stamp, digest)

    def _input(self, path: str) -> bytes | None:
        stamp = self.tree.stamp(path)
        try:
            data = self.tree.read(path)
        except OSError:
            self.new.inputs[path] = (None, None)
            return None
        self.new.inputs[path] = (_trusted(stamp), _digest(data))
        return data

    def _documents(self) -> tuple[Document, ...]:
        """All documents in the order of the files."""
        found: list[Document] = []
        for path, file in self.new.files.items():
            if path in self.parsed:
                found += self.parsed[path]
            else:
                found += [KeptDocument(path, doc.at, doc.value, self._text) for doc in file.docs]
        return tuple(found)

    def _text(self, path: str) -> str:
        from avactl.source.yaml import decode

        return decode(path, self.tree.read(path))[0]

    # -- resolving -------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Where every spec stands and goes, and which are not as they were."""
        touched = self.parsed.keys() | (self.old.files.keys() - self.new.files.keys())
        if not touched and self.old.places:
            self.new.places = self.old.places
            return
        before = {doc.key for path in touched if path in self.old.files for doc in self.old.files[path].docs}
        items = self._new_items()
        after = {item.key for item in items}
        # A name that is gone could be missed by any spec, and the structure places all of them.
        if not self.old.places or before - after or not _STRUCTURE.isdisjoint(key[0] for key in after | before):
            self._resolve_all(items, before)
        else:
            self._resolve_few(items, before)
        self.changed.update({key[0] for key in self.changed if len(key) == 3}, (EVERYTHING,))

    def _new_items(self) -> list[Item]:
        """The specs of the files that were parsed."""
        from avactl.compiler.validate import validate_document
        from avactl.kinds.program import Item

        found: list[Item] = []
        for path, documents in self.parsed.items():
            docs = []
            for document in documents:
                resource = validate_document(document)
                if isinstance(resource, list):
                    raise _Irregular
                item = Item(document, resource)
                found.append(item)
                docs.append(Doc(document.index, item.key, item.name, marshal.dumps(document.value)))
            self.new.files[path] = self.new.files[path]._replace(docs=tuple(docs))
        return found

    def _resolve_all(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.resolve import resolve
        from avactl.compiler.state import State

        kept = [item for item in self._kept_items(shipped=False) if item.key not in before]
        resources = tuple((item.doc, item.resource) for item in [*kept, *items])
        state = resolve(State(self.tree, resources=resources))
        if state.program is None or state.diagnostics or state.program.broken:
            raise _Irregular
        self._program = TracedProgram(state.program.items, self._input)
        for item in state.program.items:
            place = Place(item.doc.file, item.doc.index, item.clusters, item.namespace)
            self.new.places[item.key] = place
            if place.file in self.parsed or self.old.places.get(item.key) != place:
                self.changed.add(item.key)
        self.changed.update(self.old.places.keys() - self.new.places.keys())

    def _resolve_few(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.resolve import place, references_answered

        kept = [item for item in self._kept_items() if item.key not in before]
        self._program = TracedProgram([*kept, *items], self._input)
        self.new.places = {key: found for key, found in self.old.places.items() if key not in before}
        names = {(key[0], key[2]) for key in (*self.new.places, *(item.key for item in items))}
        for item in items:
            answered = references_answered(item, names, self._program, frozenset(), [])
            if item.key in self.new.places or not answered or not place(item, self._program, []):
                raise _Irregular
            self.new.places[item.key] = Place(item.doc.file, item.doc.index, item.clusters, item.namespace)
            self.changed.add(item.key)

    def _kept_items(self, shipped: bool = True) -> list[Item]:
        """The specs of the last run, in files that are as they were, or of the library."""
        found: list[Item] = []
        for path, file in self.old.files.items():
            if path in self.new.files and path not in self.parsed:
                found += [self._kept(doc.key, doc.name, partial(self._load, path, doc)) for doc in file.docs]
        if shipped:
            library = [key for key, place in self.old.places.items() if place.file not in self.old.files]
            found += [self._kept(key, key[2], partial(_load_shipped, key[2])) for key in library]
        return found

    def _kept(self, key: Key, name: str, load: Callable[[], tuple[Document, Any]]) -> KeptItem:
        item = KeptItem(key, name, load)
        place = self.old.places[key]
        item.clusters, item.namespace = place.clusters, place.namespace
        return item

    def _load(self, path: str, doc: Doc) -> tuple[Document, Any]:
        document = KeptDocument(path, doc.at, doc.value, self._text)
        model = registry.kind(doc.key[0]).model
        return document, model.model_validate(document.value, by_alias=True, by_name=False)

    @property
    def program(self) -> TracedProgram:
        """The program; specs of the last run are built again when somebody looks at them."""
        if self._program is None:
            self._program = TracedProgram(self._kept_items(), self._input)
        return self._program

    # -- checks and objects ----------------------------------------------------------------------------------------

    def _still(self, results: Mapping[Any, Result], key: Any) -> Result | None:
        """A result of the last run, if nothing that it read has changed."""
        result = results.get(key)
        if result is None or key in self.changed:
            return None
        alive = self.alive.get(result.reads)
        if alive is None:
            alive = self.alive[result.reads] = self.changed.isdisjoint(result.reads)
        return result if alive else None

    def _traced(self, run: Callable[[], Iterable[Any]]) -> Result:
        found, reads = self.program.trace(lambda: tuple(run()))
        self.dirty = True
        return Result(self.shared.setdefault(reads, reads), found)

    def _check(self) -> None:
        """The checks of all kinds."""
        if not self.changed:
            self.new.checks = self.old.checks
            return
        for name in registry.names():
            items = self.program.of(name)
            for item in items:
                result = self._still(self.old.checks, item.key)
                self.new.checks[item.key] = result or self._traced(partial(self._problems_of, item))
            if items:
                result = self._still(self.old.checks, name)
                self.new.checks[name] = result or self._traced(partial(self._problems_over, name))

    def _problems_of(self, item: Item) -> list[Any]:
        return _packed(registry.kind(item.kind).check(item, self.program))

    def _problems_over(self, name: str) -> list[Any]:
        return _packed(registry.kind(name).check_all(self.program))

    def _lower(self) -> None:
        """The objects of all specs, in the order of the lower pass."""
        lowered = False
        for name in registry.names():
            for key in self._keys_of(name):
                result = self._still(self.old.objects, key)
                if result is None or (self.emit and any(not thing.path for thing in result.found)):
                    result = self._traced(partial(self._objects_of, self.program.get(key[0], key[2], key[1])))
                    lowered = True
                self.new.objects[key] = result
        if lowered:
            ids = [thing.id for result in self.new.objects.values() for thing in result.found]
            if len(set(ids)) != len(ids):
                raise _Irregular

    def _keys_of(self, name: str) -> list[Key]:
        return [key for key in self.new.places if key[0] == name]

    def _objects_of(self, item: Item) -> list[Object]:
        from avactl.compiler.normalise import longest_name, mark

        found = []
        for manifest in registry.kind(item.kind).lower(item, self.program):
            if len(manifest.name) > longest_name(manifest):
                raise _Irregular
            mark(manifest, self.program)
            path = digest = ""
            if self.emit:
                path, text = self.emit(manifest)
                digest = _digest(text.encode())
                self.texts[path] = text
            found.append(Object(tuple(manifest.id), path, digest))
        return found

    def _texts_of(self, paths: Collection[str]) -> Mapping[str, str]:
        """Contents of files; of those that were not made in this run, their specs are lowered again."""
        if any(path not in self.texts for path in paths):
            owners = {thing.path: key for key, result in self.new.objects.items() for thing in result.found}
            for kind, team, name in {owners[path]: None for path in paths if path not in self.texts}:
                self._objects_of(self.program.get(kind, name, team))
        return {path: self.texts[path] for path in paths}


def _packed(problems: Iterable[Diagnostic]) -> list[Any]:
    from avactl.diagnostics.secrets import redacted

    return [pack(redacted(problem)) for problem in problems]


def _load_shipped(name: str) -> tuple[Document, Any]:
    from avactl.compiler.resolve import shipped

    return shipped(name)
