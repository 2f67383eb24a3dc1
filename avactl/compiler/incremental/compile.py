"""Compiling again what changed since the last run, and nothing else.

What a run found is kept: the documents of every file, and for every spec its warnings and objects together with what
was read of the program to find them (`kept.TracedProgram` notes it). The next run reads the files that look different,
and repeats only what read something that has changed. Kept are only results without errors: whatever is wrong with a
text, a field or a reference takes the plain way through all passes, and is told as if nothing were kept.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from avactl import parallel
from avactl.compiler.incremental.disk import Store
from avactl.compiler.incremental.loading import IrregularError, Reading, digest, packed
from avactl.compiler.incremental.records import Record, Result, unpack
from avactl.compiler.incremental.resolution import Resolving
from avactl.compiler.incremental.tracing import Atom, Key
from avactl.compiler.selection import CONFIG_FILE, missing, policy_files, spec_files
from avactl.diagnostics import Diagnostic, sort_diagnostics
from avactl.kinds import registry
from avactl.source.tree import DirTree

if TYPE_CHECKING:
    from avactl.compiler.driver import Compilation
    from avactl.kinds.manifest import Manifest
    from avactl.kinds.program import Item

OfManifest = Callable[["Manifest"], str]

_SLICE = 150
"""Fewest specs to lower that are worth a process of their own: about 50 ms."""


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
    files = {path: digest(text.encode()) for path, text in texts.items()}
    kinds = _count(item.key for item in compilation.program.items)
    return Compiled(compilation.diagnostics, kinds, files, lambda paths: {path: texts[path] for path in paths})


def _count(keys: Iterable[Key]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for kind, _, _ in keys:
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


class _Run:
    """One compile with what the last one kept."""

    def __init__(self, tree: DirTree, path: OfManifest, text: OfManifest | None) -> None:
        self.tree = tree
        self.path = path
        self.text = text
        self.store = Store("compile", tree.key)
        self.old = Record.load(self.store)
        self.new = Record()
        self.reading = Reading(tree, self.old, self.new)
        self.resolving = Resolving(self.reading)
        self.changed = self.reading.changed
        self.alive: dict[frozenset[Atom], bool] = {}
        self.shared: dict[frozenset[Atom], frozenset[Atom]] = {}
        self.texts: dict[str, str] = {}
        self.worked = False

    def run(self) -> Compiled:
        stamps = self.tree.stamps()
        chosen = self.reading.configuration()
        paths = spec_files(*chosen[:2], stamps) if chosen else []
        own = policy_files(chosen[1], stamps) if chosen else []
        plain = not paths or self.tree.skipped or any(path.endswith(".py") for path in (*paths, *own))
        if plain or (chosen and missing(chosen[0], stamps)):
            return _plain(self.tree, self.path, self.text)
        try:
            self.reading.read(paths, stamps)
            self.reading.look_at_inputs()
            self.resolving.resolve()
            self._derive()
            self._check()
            warnings = [packed for _, found in self.new.checks.values() for packed in found]
            warnings += [packed for file in self.new.files.values() for packed in file[3]]
            diagnostics = tuple(sort_diagnostics(map(unpack, warnings)))
            if not any(d.severity == "error" for d in diagnostics):
                self._lower()
                if own or (chosen and chosen[2]):
                    diagnostics = tuple(sort_diagnostics([*diagnostics, *self._enforce(own)]))
                if self.worked or self.reading.dirty:
                    self._keep()
        except IrregularError:
            return self._all_passes()
        files = dict(line.split(" ") for line in self._lines()) if self.text else {}
        return Compiled(diagnostics, _count(self.new.places), files, self._texts_of)

    def _all_passes(self) -> Compiled:
        """The plain way, from the documents on."""
        from avactl.compiler.config import load_config, rules_of
        from avactl.compiler.driver import PASSES, run_passes
        from avactl.compiler.pass_state import State

        problems = tuple(unpack(packed) for file in self.new.files.values() for packed in file[3])
        rules = rules_of(load_config(self.tree)[0], self.tree.paths())
        state = State(self.tree, problems, tuple(self.reading.documents()), rules=rules)
        return _compiled(run_passes(state, PASSES[1:]), self.path, self.text)

    def _keep(self) -> None:
        new, program = self.new, self.resolving.begun
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
        found, reads = self.resolving.program.trace(lambda: tuple(run()))
        self.worked = True
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
                value = self.resolving.program.derive(self.resolving.program.get(key[0], key[2], key[1]), make)
                if repr(value) != repr(result[1][0]):
                    news.add(("=", name, *key))
            if not news:
                break
            self.changed |= news
            self.alive.clear()
        self.new.derived = left
        self.resolving.program.derived.update({each: (result[1][0], result[0]) for each, result in left.items()})

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
            items = self.resolving.program.of(name)
            for item in items:
                kept = self._still(old.get(item.key), item.key)
                new[item.key] = kept or self._traced(partial(self._problems_of, item), item.key)
            if items:
                new[name] = self._still(old.get(name), name) or self._traced(partial(self._problems_over, name), name)

    def _problems_of(self, item: Item) -> list[Any]:
        return packed(registry.kind(item.kind).check(item, self.resolving.program))

    def _problems_over(self, name: str) -> list[Any]:
        return packed(registry.kind(name).check_all(self.resolving.program))

    def _lower(self) -> None:
        """The objects of all specs."""
        found = {key: self._still(self.old.objects.get(key), key) for key in self.new.places}
        left = [key for key, result in found.items() if result is None or self._has_no_text(result)]
        if left:
            program = self.resolving.program
            for results, texts, derived, memos, inputs in parallel.in_slices(left, self._lower_slice, _SLICE):
                for key, (reads, (lines,)) in zip(left[: len(results)], results, strict=True):
                    found[key] = (self._beside(reads, key), (lines,))
                del left[: len(results)]
                self.texts |= texts
                program.derived |= derived
                program.memos |= memos
                self.new.inputs |= inputs
        self.new.objects = {key: result for key, result in found.items() if result is not None}
        if self.worked:
            paths = [line.partition(" ")[0] for line in self._lines()]
            if len(set(paths)) != len(paths):
                raise IrregularError

    def _enforce(self, files: Sequence[str]) -> list[Diagnostic]:
        """What the policies warn of; where they find an error, the plain way tells it."""
        for path in files:
            if path not in self.new.inputs:
                self.reading.input(path)
        rules = [self.new.config[CONFIG_FILE][4], *(f"{path} {self.new.inputs[path][1]}" for path in files)]
        same = digest("\n".join(rules).encode())
        old = self.old.policies.get(same, {})
        found = {key: self._still(old.get(key), key) for key in self.new.places}
        left = [key for key, result in found.items() if result is None]
        if left:
            for key, result in self._judged(left).items():
                found[key] = result
            self.worked = True
        self.new.policies = {same: {key: result for key, result in found.items() if result is not None}}
        return [unpack(packed) for result in found.values() if result for packed in result[1]]

    def _judged(self, keys: Sequence[Key]) -> dict[Key, Result]:
        """What the policies find of some specs and their objects. Raises IrregularError for errors."""
        from avactl.compiler.config import load_config, rules_of
        from avactl.compiler.policy_pass import judge

        program = self.resolving.program
        config, _ = load_config(self.tree)
        rules = rules_of(config, self.tree.stamps())
        items = [program.get(kind, name, team) for kind, team, name in keys]
        made = [program.trace(partial(self._marked, item)) for item in items]
        if rules is None:
            raise IrregularError
        problems = judge(rules, self.tree, items, [manifest for manifests, _ in made for manifest in manifests])
        if any(item is None or problem.severity == "error" for item, problem in problems):
            raise IrregularError
        told: dict[Key, list[Diagnostic]] = {key: [] for key in keys}
        for item, problem in problems:
            if item is not None:
                told[item.key].append(problem)
        return {
            key: (self._beside(reads, key), tuple(packed(told[key])))
            for key, (_, reads) in zip(keys, made, strict=True)
        }

    def _marked(self, item: Item) -> list[Manifest]:
        """The objects of a spec as they are written."""
        from avactl.compiler.normalise import longest_name, mark

        manifests = registry.kind(item.kind).lower(item, self.resolving.program)
        for manifest in manifests:
            if len(manifest.name) > longest_name(manifest):
                raise IrregularError
            mark(manifest, self.resolving.program)
        return manifests

    def _has_no_text(self, result: Result) -> bool:
        lines = result[1][0]
        return bool(self.text and lines and " " not in lines)

    def _lower_slice(self, keys: Sequence[Key]) -> tuple[Any, ...]:
        """The objects of some specs, and what was made or read on the way: all that another process has to tell."""
        self.worked = True
        program = self.resolving.program
        tables: list[dict[Any, Any]] = [self.texts, program.derived, program.memos, self.new.inputs]
        before = [set(table) for table in tables]
        results = []
        for kind, team, name in keys:
            found, reads = program.trace(partial(self._objects_of, program.get(kind, name, team)))
            results.append((reads, found))
        news = [
            {key: value for key, value in table.items() if key not in known}
            for table, known in zip(tables, before, strict=True)
        ]
        return results, *news

    def _lines(self) -> list[str]:
        """Path and digest of each object."""
        return [line for _, (found,) in self.new.objects.values() if found for line in found.split("\n")]

    def _objects_of(self, item: Item) -> tuple[str]:
        lines = []
        for manifest in self._marked(item):
            line = path = self.path(manifest)
            if self.text:
                text = self.texts[path] = self.text(manifest)
                line = f"{path} {digest(text.encode())}"
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
                self._objects_of(self.resolving.program.get(kind, name, team))
        return {path: self.texts[path] for path in paths}
