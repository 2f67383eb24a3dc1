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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any

from avactl.compiler.kept import Atom, KeptDocument, Key, TracedItem, TracedProgram
from avactl.compiler.record import Doc, File, Packed, Place, Record, Result, pack, unpack
from avactl.compiler.selection import CONFIG_FILE, missing, spec_files
from avactl.compiler.store import Store
from avactl.diagnostics import Diagnostic, sort_diagnostics
from avactl.kinds import registry
from avactl.source.tree import DirTree, Stamp

if TYPE_CHECKING:
    from avactl.compiler.driver import Compilation
    from avactl.kinds.manifest import Manifest
    from avactl.kinds.program import Item
    from avactl.source.document import Document

OfManifest = Callable[["Manifest"], str]

_STRUCTURE = frozenset(["Cluster", "MachineType", "NodePool", "Team"])
"""Kinds that the resolve pass looks at when it resolves other specs."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compile tells: problems, specs, and the files of the objects."""

    diagnostics: tuple[Diagnostic, ...]
    kinds: dict[str, int]
    """How many specs there are of each kind, shipped machine types in use among them."""
    files: dict[str, str]
    """SHA-256 of each file by its path; empty where there are errors, or texts are not wanted."""
    texts: Callable[[Collection[str]], Mapping[str, str]]
    """Contents of files by their paths."""

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return not any(d.severity == "error" for d in self.diagnostics)


def compile_cached(
    tree: DirTree, path: OfManifest, text: OfManifest | None = None, *, use_cache: bool = True
) -> Compiled:
    """Compile a repository; problems are in the result, never raised.

    `path` gives the path of an object's file, no two the same; `text` its content, where that is wanted.
    """
    collecting = gc.isenabled()
    gc.disable()  # as in the driver
    try:
        # Kinds of plug-ins are not part of the store's version.
        if use_cache and not registry.added():
            return _Run(tree, path, text).run()
        return _plain(tree, path, text)
    finally:
        if collecting:
            gc.enable()


def _plain(tree: DirTree, path: OfManifest, text: OfManifest | None) -> Compiled:
    from avactl.compiler.driver import compile_tree

    return _compiled(compile_tree(tree), path, text)


def _compiled(compilation: Compilation, path: OfManifest, text: OfManifest | None) -> Compiled:
    texts = {path(manifest): text(manifest) for manifest in compilation.manifests} if text else {}
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

    def __init__(self, tree: DirTree, path: OfManifest, text: OfManifest | None) -> None:
        self.tree = tree
        self.path = path
        self.text = text
        self.store = Store("compile", tree.key)
        self.old = Record.load(self.store)
        self.new = Record()
        self.dirty = False
        self.parsed: dict[str, list[Document]] = {}
        """Documents of the files that are not as they were."""
        self.changed: set[Atom] = set()
        """Everything that is not as it was."""
        self.alive: dict[frozenset[Atom], bool] = {}
        self.shared: dict[frozenset[Atom], frozenset[Atom]] = {}
        self.texts: dict[str, str] = {}
        self._program: TracedProgram | None = None

    def run(self) -> Compiled:
        stamps = self.tree.stamps()
        chosen = self._configuration()
        paths = spec_files(*chosen, stamps) if chosen else []
        plain = not paths or self.tree.skipped or any(path.endswith(".py") for path in paths)
        if plain or (chosen and missing(chosen[0], stamps)):
            return _plain(self.tree, self.path, self.text)
        try:
            self._read(paths, stamps)
            self._look_at_inputs()
            self._resolve()
            self._derive()
            self._check()
            packed = [packed for _, found in self.new.checks.values() for packed in found]
            packed += [packed for file in self.new.files.values() for packed in file[3]]
            diagnostics = tuple(sort_diagnostics(map(unpack, packed)))
            if not any(d.severity == "error" for d in diagnostics):
                self._lower()
                if self.dirty:
                    self._keep()
        except _Irregular:
            return self._all_passes()
        files = dict(line.split(" ") for line in self._lines()) if self.text else {}
        return Compiled(diagnostics, _count(self.new.places), files, self._texts_of)

    def _all_passes(self) -> Compiled:
        """The plain way, from the documents on."""
        from avactl.compiler.driver import PASSES, run_passes
        from avactl.compiler.state import State

        problems = tuple(unpack(packed) for file in self.new.files.values() for packed in file[3])
        documents: list[Document] = []
        for path, (_, _, docs, _) in self.new.files.items():
            if path in self.parsed:
                documents += self.parsed[path]
            else:
                documents += [KeptDocument(path, at, value, self._text) for at, _, value in docs]
        return _compiled(run_passes(State(self.tree, problems, tuple(documents)), PASSES[1:]), self.path, self.text)

    def _keep(self) -> None:
        new, program = self.new, self._program
        if program is not None:
            for each, (value, reads) in program.derived.items():
                if each not in new.derived:
                    new.derived[each] = (self._beside(reads, each[1]), (value,))
            memos = {atom: reads for atom, reads in self.old.memos.items() if atom not in self.changed}
            memos |= {atom: reads for atom, reads in program.memos.items() if memos.get(atom) != reads}
            tables = (new.checks, new.objects, new.derived)
            sets = {id(result[0]): result[0] for table in tables for result in table.values()}
            used = set().union(*sets.values(), *memos.values())
            new.memos = {atom: reads for atom, reads in memos.items() if atom in used}
        new.save(self.store)

    # -- what is there ---------------------------------------------------------------------------------------------

    def _configuration(self) -> tuple[list[str], list[str]] | None:
        """What belongs to the repository, by avactl.yaml; None where that has problems."""
        stamp = self.tree.stamp(CONFIG_FILE)
        kept = self.old.config.get(CONFIG_FILE)
        if kept is None or (stamp is not None and kept[0] != stamp) or (stamp is None and kept[1]):
            from avactl.compiler.config import load_config

            config, problems = load_config(self.tree)
            if problems:
                return None
            kept = (_trusted(stamp), stamp is not None, list(config.include), list(config.exclude))
            self.dirty = True
        self.new.config[CONFIG_FILE] = kept
        return kept[2], kept[3]

    def _read(self, paths: list[str], stamps: Mapping[str, Stamp]) -> None:
        """The files: as they were, or parsed anew."""
        failed = False
        for path in paths:
            stamp = stamps[path]
            file = self.old.files.get(path)
            if file is None or file[0] != stamp:
                file = self._parse(path, stamp, file)
                failed = failed or any(packed["severity"] == "error" for packed in file[3])
                self.dirty = True
            self.new.files[path] = file
        if failed:
            raise _Irregular
        if self.old.files.keys() - self.new.files.keys():
            self.dirty = True

    def _parse(self, path: str, stamp: Stamp, old: File | None) -> File:
        from avactl.source.yaml import MAX_BYTES, load_yaml

        digest = ""
        data = b""
        if stamp[1] <= MAX_BYTES:
            with suppress(OSError):
                data = self.tree.read(path)
                digest = _digest(data)
        if old is not None and old[1] == digest:
            return (_trusted(stamp), *old[1:])
        if data:
            documents, problems = load_yaml(path, data)
        else:  # empty, too large, or not to be read: the loader tells
            from avactl.compiler.load import load_file

            documents, problems = load_file(self.tree, path)
        self.parsed[path] = documents
        return (_trusted(stamp), digest, (), tuple(_packed(problems)))

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
        before = {key for path in touched if path in self.old.files for _, key, _ in self.old.files[path][2]}
        items = self._new_items()
        after = {item.key for item in items}
        # A name that is gone could be missed by any spec, and the structure places all of them.
        if not self.old.places or before - after or not _STRUCTURE.isdisjoint(key[0] for key in after | before):
            self._resolve_all(items, before)
        else:
            self._resolve_few(items, before)
        old, new = self.old.places, self.new.places
        moved = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        self.changed.update(before, after, moved, {key[0] for key in moved})

    def _new_items(self) -> list[Item]:
        """The specs of the files that were parsed."""
        from avactl.compiler.validate import validate_document
        from avactl.kinds.program import Item

        found: list[Item] = []
        for path, documents in self.parsed.items():
            docs: list[Doc] = []
            for document in documents:
                resource = validate_document(document)
                if isinstance(resource, list):
                    raise _Irregular
                item = Item(document, resource)
                found.append(item)
                docs.append((document.index, item.key, marshal.dumps(document.value)))
            stamp, digest, _, warnings = self.new.files[path]
            self.new.files[path] = (stamp, digest, tuple(docs), warnings)
        return found

    def _resolve_all(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.resolve import resolve
        from avactl.compiler.state import State

        kept = [item for item in self._kept_items(shipped=False) if item.key not in before]
        resources = tuple((item.doc, item.resource) for item in [*kept, *items])
        state = resolve(State(self.tree, resources=resources))
        if state.program is None or state.diagnostics or state.program.broken:
            raise _Irregular
        traced = [_traced_item(item) for item in state.program.items]
        self._program = TracedProgram(traced, self._input)
        self.new.places = {item.key: _place(item) for item in traced}

    def _resolve_few(self, items: list[Item], before: Collection[Key]) -> None:
        from avactl.compiler.resolve import place, references_answered

        kept = [item for item in self._kept_items() if item.key not in before]
        traced = [_traced_item(item) for item in items]
        program = self._program = TracedProgram([*kept, *traced], self._input)
        self.new.places = {key: found for key, found in self.old.places.items() if key not in before}
        names = {(key[0], key[2]) for key in (*self.new.places, *(item.key for item in items))}
        for item in traced:
            answered = references_answered(item, names, program, frozenset(), [])
            if item.key in self.new.places or not answered or not place(item, program, []):
                raise _Irregular
            self.new.places[item.key] = _place(item)

    def _kept_items(self, shipped: bool = True) -> list[TracedItem]:
        """The specs of the last run, in files that are as they were, or of the library."""
        found = [
            self._kept(key, partial(self._load, path, doc_at, key[0], value))
            for path, (_, _, docs, _) in self.old.files.items()
            if path in self.new.files and path not in self.parsed
            for doc_at, key, value in docs
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
        document = KeptDocument(path, at, value, self._text)
        model = registry.kind(kind).model
        return document, model.model_validate(document.value, by_alias=True, by_name=False)

    @property
    def program(self) -> TracedProgram:
        """The program; specs of the last run are built again when somebody looks into them."""
        if self._program is None:
            self._program = TracedProgram(self._kept_items(), self._input)
        return self._program

    # -- checks and objects ----------------------------------------------------------------------------------------

    def _still(self, result: Result | None, own: Atom) -> Result | None:
        """A result of the last run, if nothing that it read has changed."""
        if result is None or own in self.changed:
            return None
        alive = self.alive.get(result[0])
        if alive is None:
            alive = self.alive[result[0]] = self.changed.isdisjoint(result[0])
        return result if alive else None

    def _traced(self, run: Callable[[], Iterable[Any]], own: Atom) -> Result:
        found, reads = self.program.trace(lambda: tuple(run()))
        self.dirty = True
        return self._beside(reads, own), found

    def _beside(self, reads: frozenset[Atom], own: Atom) -> frozenset[Atom]:
        """What was read beside the spec itself: the same for many."""
        others = reads - {own}
        return self.shared.setdefault(others, others)

    def _derive(self) -> None:
        """What was derived from specs: only where it comes out differently, what was made of it is made again."""
        if not self.changed:
            self.new.derived, self.new.memos = self.old.derived, self.old.memos
            return
        left = {key: result for key, result in self.old.derived.items() if key[1] in self.new.places}
        while True:
            self._forget_memos()
            news: set[Atom] = set()
            for (name, key), result in list(left.items()):
                if self._still(result, key):
                    continue
                del left[name, key]
                module, _, function = name.partition(":")
                make = getattr(import_module(module), function)
                value = self.program.derive(self.program.get(key[0], key[2], key[1]), make)
                if repr(value) != repr(result[1][0]):
                    news.add(("=", name, *key))
            if not news:
                break
            self.changed |= news
            self.alive.clear()
        self.new.derived = left
        self.program.derived.update({each: (result[1][0], result[0]) for each, result in left.items()})

    def _forget_memos(self) -> None:
        """Memoised values that read something that has changed count as changed."""
        left = dict(self.old.memos)
        while dead := [atom for atom, reads in left.items() if not self.changed.isdisjoint(reads)]:
            self.changed.update(dead)
            for atom in dead:
                del left[atom]

    def _check(self) -> None:
        """The checks of all kinds."""
        if not self.changed:
            self.new.checks = self.old.checks
            return
        old, new = self.old.checks, self.new.checks
        for name in registry.names():
            items = self.program.of(name)
            for item in items:
                kept = self._still(old.get(item.key), item.key)
                new[item.key] = kept or self._traced(partial(self._problems_of, item), item.key)
            if items:
                new[name] = self._still(old.get(name), name) or self._traced(partial(self._problems_over, name), name)

    def _problems_of(self, item: Item) -> list[Any]:
        return _packed(registry.kind(item.kind).check(item, self.program))

    def _problems_over(self, name: str) -> list[Any]:
        return _packed(registry.kind(name).check_all(self.program))

    def _lower(self) -> None:
        """The objects of all specs."""
        lowered = False
        for key in self.new.places:
            result = self._still(self.old.objects.get(key), key)
            if result is None or (self.text and result[1][0] and " " not in result[1][0]):
                result = self._traced(partial(self._objects_of, self.program.get(key[0], key[2], key[1])), key)
                lowered = True
            self.new.objects[key] = result
        if lowered:
            paths = [line.partition(" ")[0] for line in self._lines()]
            if len(set(paths)) != len(paths):
                raise _Irregular

    def _lines(self) -> list[str]:
        """Path and digest of each object."""
        return [line for _, (found,) in self.new.objects.values() if found for line in found.split("\n")]

    def _objects_of(self, item: Item) -> tuple[str]:
        from avactl.compiler.normalise import longest_name, mark

        lines = []
        for manifest in registry.kind(item.kind).lower(item, self.program):
            if len(manifest.name) > longest_name(manifest):
                raise _Irregular
            mark(manifest, self.program)
            line = path = self.path(manifest)
            if self.text:
                text = self.texts[path] = self.text(manifest)
                line = f"{path} {_digest(text.encode())}"
            lines.append(line)
        return ("\n".join(lines),)

    def _texts_of(self, paths: Collection[str]) -> Mapping[str, str]:
        """Contents of files; of those that were not made in this run, their specs are lowered again."""
        if any(path not in self.texts for path in paths):
            owners = {
                line.partition(" ")[0]: key
                for key, (_, (found,)) in self.new.objects.items()
                for line in found.split("\n")
            }
            for kind, team, name in {owners[path]: None for path in paths if path not in self.texts}:
                self._objects_of(self.program.get(kind, name, team))
        return {path: self.texts[path] for path in paths}


def _place(item: TracedItem) -> Place:
    return (*item.origin, item.name, item.clusters, item.namespace)


def _traced_item(item: Item) -> TracedItem:
    content = (item.doc, item.resource)
    traced = TracedItem(item.key, item.name, item.origin, lambda: content)
    traced.clusters, traced.namespace = item.clusters, item.namespace
    return traced


def _packed(problems: Iterable[Diagnostic]) -> list[Packed]:
    from avactl.diagnostics.secrets import redacted

    return [pack(redacted(problem)) for problem in problems]


def _load_shipped(name: str) -> tuple[Document, Any]:
    from avactl.compiler.resolve import shipped

    return shipped(name)
