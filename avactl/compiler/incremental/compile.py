"""Incremental compile: repeat only the computations whose dependencies changed since the last run.

A run keeps the documents of every file, and for every spec its warnings and objects with their dependencies
(`tracing.TracedProgram`). The next run reads the files whose stamps differ, and repeats what depends on a change. Only
results without errors are kept: a repository with an error goes through all passes, with the same output as without
kept results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from avactl.base import gc_control as collector
from avactl.base import parallel
from avactl.compiler.incremental.disk import ResultStore
from avactl.compiler.incremental.loading import IrregularError, Loader, digest, packed
from avactl.compiler.incremental.records import (
    ConfigRecord,
    InputRecord,
    KeptRecord,
    KeptResult,
    PlainDependencies,
    unpack,
)
from avactl.compiler.incremental.resolution import Resolver
from avactl.compiler.incremental.tracing import Dependency, DerivedValue, MemoisedValue, SpecKey, SpecsOfKind
from avactl.compiler.selection import (
    CONFIG_FILE,
    Paths,
    is_selected,
    overlay_files,
    policy_files,
    spec_files,
    unmatched_includes,
)
from avactl.diagnostics import Diagnostic, sort_diagnostics
from avactl.program import registry
from avactl.program.refused import RefusedError
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.tree import DirTree
from avactl.spec.repository.tree_files import OWN_REPOSITORY

if TYPE_CHECKING:
    from avactl.compiler.driver import Compilation
    from avactl.program.manifest import Manifest
    from avactl.program.program import Item

OfManifest = Callable[["Manifest"], str]

_SLICE = 150
"""Fewest specs to lower that are worth a process of their own: about 50 ms."""


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """The outcome of a compile: problems, specs, and the files of the objects."""

    diagnostics: tuple[Diagnostic, ...]
    untraced: tuple[Diagnostic, ...]
    """The problems before those that follow from another one were removed."""
    kinds: dict[str, int]
    """Number of specs by kind, without shipped ones."""
    files: dict[str, str]
    """SHA-256 of each file by path; empty if there are errors, or texts were not requested."""
    texts: Callable[[Collection[str]], Mapping[str, str]]
    """Function from paths to the contents of those files."""

    @property
    def ok(self) -> bool:
        """True if there is no error; there may be warnings."""
        return not any(d.severity == "error" for d in self.diagnostics)


def compile_cached(
    tree: DirTree | CommitTree, path: OfManifest, text: OfManifest | None = None, *, use_cache: bool = True
) -> CompileOutcome:
    """Compile a repository; problems are in the result, never raised.

    `path` returns the path of an object's file, a different one for each object; `text`, if given, its content.
    """
    with collector.pause_gc():
        if use_cache and isinstance(tree, DirTree):  # a commit has no stamps
            return _CompileRun(tree, path, text).run()
        return _plain(tree, path, text)


def _plain(tree: DirTree | CommitTree, path: OfManifest, text: OfManifest | None) -> CompileOutcome:
    from avactl.compiler.driver import compile_tree

    return _compiled(compile_tree(tree), path, text)


def _compiled(compilation: Compilation, path: OfManifest, text: OfManifest | None) -> CompileOutcome:
    texts = {path(manifest): text(manifest) for manifest in compilation.manifests} if text else {}
    files = {path: digest(text.encode()) for path, text in texts.items()}
    kinds = _count(item.key for item in compilation.program.items if not item.doc.shipped)
    problems = compilation.diagnostics, compilation.untraced
    return CompileOutcome(*problems, kinds, files, lambda paths: {path: texts[path] for path in paths})


def _count(keys: Iterable[SpecKey]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for kind, _, _ in keys:
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def same_data(one: Any, other: Any) -> bool:
    """Compare plain data strictly, including types and the order of mappings, which can affect objects."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_data, one, other))
    if isinstance(one, dict):
        return same_data(list(one.items()), list(other.items()))
    return bool(one == other)


class _CompileRun:
    """One compile with the results of the last one."""

    def __init__(self, tree: DirTree, path: OfManifest, text: OfManifest | None) -> None:
        self.tree = tree
        self.path = path
        self.text = text
        self.store = ResultStore("compile", tree.key)
        self.old = KeptRecord.load(self.store)
        self.new = KeptRecord()
        self.loader = Loader(tree, self.old, self.new)
        self.resolver = Resolver(self.loader)
        self.changed = self.loader.changed
        self.unchanged: dict[frozenset[Dependency], bool] = {}
        """By set of dependencies: no member has changed."""
        self.shared: dict[frozenset[Dependency], frozenset[Dependency]] = {}
        """One object for all equal sets of dependencies, for memory and for the store."""
        self.texts: dict[str, str] = {}
        """Contents of the files that this run rendered, by path."""
        self.worked = False
        """True if this run computed a result that the last one does not have."""

    def run(self) -> CompileOutcome:
        stamps = self.tree.stamps()
        config = self.loader.configuration()
        paths = spec_files(config.include, config.other, stamps) if config else []
        overlays = overlay_files(config.overlays, config.exclude, stamps) if config else []
        own = policy_files(config.exclude, stamps) if config else []
        irregular = not paths or any(path.endswith(".py") for path in (*paths, *overlays, *own))
        irregular = irregular or bool(config and any(map(partial(_may_matter, config), self.tree.skipped.items())))
        if irregular or (config and unmatched_includes(config.paths, stamps)):
            return _plain(self.tree, self.path, self.text)
        try:
            self.loader.read(paths, overlays, stamps)
            self.loader.compare_inputs()
            self.resolver.resolve()
            self._derive()
            self._check()
            warnings = [packed for result in self.new.checks.values() for packed in result.values]
            warnings += [packed for file in self.new.files.values() for packed in file.warnings]
            diagnostics = untraced = tuple(sort_diagnostics(map(unpack, warnings)))
            if any(d.severity == "error" for d in diagnostics):
                from avactl.compiler.causes import trace_causes

                causes = trace_causes(self.tree, tuple(self.loader.documents()), diagnostics)
                diagnostics = tuple(sort_diagnostics(causes))
            else:
                self._lower()
                if own or (config and config.policies):
                    diagnostics = untraced = tuple(sort_diagnostics([*diagnostics, *self._enforce(own)]))
                if self.worked or self.loader.dirty:
                    self._keep()
        except IrregularError:
            return _plain(self.tree, self.path, self.text) if self.loader.layers else self._all_passes()
        files = dict(line.split(" ") for line in self._lines()) if self.text else {}
        written = (key for key, spec in self.new.specs.items() if spec.file in self.new.files)
        return CompileOutcome(diagnostics, untraced, _count(written), files, self._texts_of)

    def _all_passes(self) -> CompileOutcome:
        """Run all passes on the documents that were loaded."""
        from avactl.compiler.config import load_config, rules_of
        from avactl.compiler.driver import PASSES, run_passes
        from avactl.compiler.pass_state import PassState

        problems = tuple(unpack(packed) for file in self.new.files.values() for packed in file.warnings)
        config, _ = load_config(self.tree)
        owners = (tuple(config.owners),) if config.owners else ()
        rules = rules_of(config, self.tree.paths())
        state = PassState(self.tree, problems, tuple(self.loader.documents()), owners=owners, rules=rules)
        return _compiled(run_passes(state, PASSES[1:]), self.path, self.text)

    def _keep(self) -> None:
        """Write the record, with only those memoised values that a result depends on."""
        new, program = self.new, self.resolver.built
        if program is not None:
            for each, (value, reads) in program.derived.items():
                if each not in new.derived:
                    _, spec = each
                    new.derived[each] = KeptResult(self._beside(reads, spec), (value,))
            memos = {key: reads for key, reads in self.old.memos.items() if MemoisedValue(key) not in self.changed}
            memos |= {key: reads for key, reads in program.memos.items() if memos.get(key) != reads}
            results = (*new.checks.values(), *new.objects.values(), *new.derived.values())
            sets = {id(result.dependencies): result.dependencies for result in results}
            used = set().union(*sets.values(), *memos.values())
            new.memos = {key: reads for key, reads in memos.items() if MemoisedValue(key) in used}
        new.save(self.store)

    # -- checks and objects ----------------------------------------------------------------------------------------

    def _valid(self, result: KeptResult | None, own: Dependency) -> KeptResult | None:
        """Return a result of the last run if none of its dependencies has changed, `own` included."""
        if result is None or own in self.changed:
            return None
        valid = self.unchanged.get(result.dependencies)
        if valid is None:
            valid = self.unchanged[result.dependencies] = self.changed.isdisjoint(result.dependencies)
        return result if valid else None

    def _traced(self, run: Callable[[], Iterable[Any]], own: Dependency) -> KeptResult:
        found, reads = self.resolver.program.trace(lambda: tuple(run()))
        self.worked = True
        return KeptResult(self._beside(reads, own), found)

    def _beside(self, reads: frozenset[Dependency], own: Dependency) -> frozenset[Dependency]:
        """Return the dependencies without the spec itself: many specs have the same ones."""
        others = reads - {own}
        return self.shared.setdefault(others, others)

    def _derive(self) -> None:
        """Derive values again from specs that changed; what depends on one is invalid only if the value differs."""
        if not self.changed:
            self.new.derived, self.new.memos = self.old.derived, self.old.memos
            return
        program = self.resolver.program
        left = {key: result for key, result in self.old.derived.items() if key[1] in self.new.specs}
        while True:
            self._forget_memos()
            changed: set[Dependency] = set()
            for (function, key), result in list(left.items()):
                if self._valid(result, key):
                    continue
                del left[function, key]
                module, _, attribute = function.partition(":")
                make = getattr(import_module(module), attribute)
                value = program.derive(self._item(key), make)
                if not same_data(value, result.values[0]):
                    changed.add(DerivedValue(function, key))
            if not changed:
                break
            self.changed |= changed
            self.unchanged.clear()
        self.new.derived = left
        program.derived.update({each: (result.values[0], result.dependencies) for each, result in left.items()})

    def _item(self, key: SpecKey) -> Item:
        kind, team, name = key
        return self.resolver.program.get(kind, name, team)

    def _forget_memos(self) -> None:
        """Mark memoised values as changed if one of their dependencies has, transitively."""
        left = dict(self.old.memos)
        while invalid := [key for key, reads in left.items() if not self.changed.isdisjoint(reads)]:
            self.changed.update(map(MemoisedValue, invalid))
            for key in invalid:
                del left[key]

    def _check(self) -> None:
        """Run the checks of all kinds, of one spec and over all specs of a kind."""
        if not self.changed:
            self.new.checks = self.old.checks
            return
        old, new = self.old.checks, self.new.checks
        for name in registry.kind_names():
            items = self.resolver.program.of(name)
            for item in items:
                kept = self._valid(old.get(item.key), item.key)
                new[item.key] = kept or self._traced(partial(self._problems_of, item), item.key)
            if items:
                own = SpecsOfKind(name)
                new[name] = self._valid(old.get(name), own) or self._traced(partial(self._problems_over, name), own)

    def _problems_of(self, item: Item) -> list[Any]:
        from avactl.compiler.check import problems_of

        return packed(problems_of(item, self.resolver.program))

    def _problems_over(self, name: str) -> list[Any]:
        return packed(registry.get_kind(name).check_all(self.resolver.program))

    def _lower(self) -> None:
        """Lower the specs whose objects are not valid, on all cores. Raises IrregularError for equal paths."""
        found = {key: self._valid(self.old.objects.get(key), key) for key in self.new.specs}
        left = [key for key, result in found.items() if result is None or self._has_no_text(result)]
        if left:
            program = self.resolver.program
            for results, texts, derived, memos, inputs in parallel.in_slices(left, self._lower_slice, _SLICE):
                for key, (reads, lines) in zip(left[: len(results)], results, strict=True):
                    found[key] = KeptResult(self._beside(reads, key), lines)
                del left[: len(results)]
                self.texts |= texts
                program.derived |= derived
                program.memos |= memos
                self.new.inputs |= {path: InputRecord._make(record) for path, record in inputs.items()}
        self.new.objects = {key: result for key, result in found.items() if result is not None}
        if self.worked:
            paths = [line.partition(" ")[0] for line in self._lines()]
            if len(set(paths)) != len(paths):
                raise IrregularError

    def _enforce(self, files: Sequence[str]) -> list[Diagnostic]:
        """Return the warnings of policies. Raises IrregularError for errors, which all passes report."""
        for path in files:
            if path not in self.new.inputs:
                self.loader.input(path)
        rules = [self.new.config[CONFIG_FILE].policies, *(f"{path} {self.new.inputs[path].digest}" for path in files)]
        same = digest("\n".join(rules).encode())
        old = self.old.policies.get(same, {})
        found = {key: self._valid(old.get(key), key) for key in self.new.specs}
        left = [key for key, result in found.items() if result is None]
        if left:
            for key, result in self._judged(left).items():
                found[key] = result
            self.worked = True
        self.new.policies = {same: {key: result for key, result in found.items() if result is not None}}
        return [unpack(packed) for result in found.values() if result for packed in result.values]

    def _judged(self, keys: Sequence[SpecKey]) -> dict[SpecKey, KeptResult]:
        """Run the policies over some specs and their objects. Raises IrregularError for errors."""
        from avactl.compiler.config import load_config, rules_of
        from avactl.compiler.policies.evaluation import judge_specs

        program = self.resolver.program
        config, _ = load_config(self.tree)
        rules = rules_of(config, self.tree.stamps())
        items = [self._item(key) for key in keys]
        made = [program.trace(partial(self._marked, item)) for item in items]
        if rules is None:
            raise IrregularError
        problems = judge_specs(rules, self.tree, items, [manifest for manifests, _ in made for manifest in manifests])
        if any(item is None or problem.severity == "error" for item, problem in problems):
            raise IrregularError
        found: dict[SpecKey, list[Diagnostic]] = {key: [] for key in keys}
        for item, problem in problems:
            if item is not None:
                found[item.key].append(problem)
        return {
            key: KeptResult(self._beside(reads, key), tuple(packed(found[key])))
            for key, (_, reads) in zip(keys, made, strict=True)
        }

    def _marked(self, item: Item) -> list[Manifest]:
        """Return the normalised objects of a spec. Raises IrregularError for those that no API server takes."""
        from avactl.compiler.lower import objects_of
        from avactl.compiler.normalise import complete_manifest, refusals

        try:
            manifests = objects_of(item, self.resolver.program)
        except RefusedError as refused:
            raise IrregularError from refused
        for manifest in manifests:
            if any(refusals(manifest)):
                raise IrregularError
            complete_manifest(manifest, self.resolver.program)
        return manifests

    def _has_no_text(self, result: KeptResult) -> bool:
        lines = result.values[0]
        return bool(self.text and lines and " " not in lines)

    def _lower_slice(self, keys: Sequence[SpecKey]) -> tuple[Any, ...]:
        """Return the objects of some specs and everything else that was computed, as plain data for other processes."""
        self.worked = True
        program = self.resolver.program
        tables: list[dict[Any, Any]] = [self.texts, program.derived, program.memos, self.new.inputs]
        before = [set(table) for table in tables]
        plain = PlainDependencies()
        results = []
        for key in keys:
            found, reads = program.trace(partial(self._objects_of, self._item(key)))
            results.append((plain(reads), found))
        texts, derived, memos, inputs = (
            {key: value for key, value in table.items() if key not in known}
            for table, known in zip(tables, before, strict=True)
        )
        return (
            results,
            texts,
            {key: (value, plain(reads)) for key, (value, reads) in derived.items()},
            {key: plain(reads) for key, reads in memos.items()},
            {path: tuple(record) for path, record in inputs.items()},
        )

    def _lines(self) -> list[str]:
        """Return a line for each object: path and digest."""
        return [line for result in self.new.objects.values() for line in _lines_of(result)]

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
        """Return the contents of files, lowering specs again whose objects this run did not render."""
        if any(path not in self.texts for path in paths):
            owners = {
                line.partition(" ")[0]: key for key, result in self.new.objects.items() for line in _lines_of(result)
            }
            for key in {owners[path]: None for path in paths if path not in self.texts}:
                self._objects_of(self._item(key))
        return {path: self.texts[path] for path in paths}


def _may_matter(config: ConfigRecord, skipped: tuple[str, str]) -> bool:
    """Return True unless a skipped path is a repository of its own that is excluded: it has no problem to report."""
    path, why = skipped
    wanted = Paths(config.include, config.other, config.overlays)
    return why != OWN_REPOSITORY or is_selected(wanted, config.exclude, f"{path}/.yaml")


def _lines_of(result: KeptResult) -> list[str]:
    lines: str = result.values[0]
    return lines.split("\n") if lines else []
