"""The compiler: a tree of files through the passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from avactl.base import gc_control as collector
from avactl.compiler.causes import trace_causes
from avactl.compiler.check import check
from avactl.compiler.config import base_in_environment, environment_paths, load_config, owners_of, rules_of
from avactl.compiler.layers.merge_pass import merge
from avactl.compiler.load import load
from avactl.compiler.lower import lower
from avactl.compiler.normalise import normalise
from avactl.compiler.pass_state import PassState
from avactl.compiler.policies.evaluation import enforce, judge_specs
from avactl.compiler.resolve import resolve
from avactl.compiler.selection import PROJECT_DIRECTORY, is_selected
from avactl.compiler.validate import validate
from avactl.diagnostics import CompileError, Diagnostic, Span, sort_diagnostics
from avactl.diagnostics.redaction import redact_diagnostic
from avactl.policy.owners import Owners
from avactl.program.manifest import Manifest
from avactl.program.program import Program
from avactl.spec.documents.credentials import without_repeats
from avactl.spec.documents.document import Document, FixedLocator
from avactl.spec.python_files.calls import PythonLocator
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.tree import MemoryTree, Tree
from avactl.spec.schema.base import Resource

PASSES: tuple[Callable[[PassState], PassState], ...] = (
    load,
    merge,
    validate,
    resolve,
    check,
    lower,
    normalise,
    enforce,
)


@dataclass(frozen=True, slots=True)
class Compilation:
    """Result of a compilation: the resolved program, the objects in apply order, and all problems."""

    tree: Tree
    program: Program
    manifests: tuple[Manifest, ...]
    diagnostics: tuple[Diagnostic, ...]
    untraced: tuple[Diagnostic, ...]
    """The problems before those that follow from another one were removed."""

    @property
    def ok(self) -> bool:
        """True if there are no errors; there may be warnings."""
        return not any(d.severity == "error" for d in self.diagnostics)


def compile_tree(
    tree: Tree, passes: Iterable[Callable[[PassState], PassState]] = PASSES, owners: Owners = ()
) -> Compilation:
    """Compile a repository. Problems are in the result, never raised.

    `owners`: those of an earlier revision, which apply in addition to the repository's own.
    """
    return run_passes(PassState(tree, owners=(owners,) if owners else ()), passes)


def compile_change(
    base: Tree, head: Tree, passes: Iterable[Callable[[PassState], PassState]] = PASSES, *, tip: Tree | None = None
) -> tuple[Compilation, Compilation]:
    """Compile both sides of a change; the `owners` of `tip` (default: the base) apply to the head, too."""
    after = compile_tree(head, passes, owners_of(tip or base))
    return compile_tree(base_in_environment(base), passes), after


def compile(resources: Iterable[Resource]) -> Compilation:
    """Compile typed specs of a Python program. Raises CompileError with every problem."""
    documents = tuple(_document_of(index, resource) for index, resource in enumerate(resources))
    state = PassState(MemoryTree({}), documents=documents)
    result = run_passes(state, PASSES[1:])
    if not result.ok:
        raise CompileError(result.diagnostics)
    return result


def _document_of(index: int, resource: Resource) -> Document:
    """Return a typed spec as a document whose problems are located at the arguments of its constructor call."""
    place = resource.made_at
    if place is None or not Path(place.file).is_file():  # parsed, or typed into an interpreter
        return Document("<python>", index, resource.to_dict(), FixedLocator(Span("<python>", index + 1)))
    locator = PythonLocator(_program_text, place.file, {(): place})
    return Document(place.file, index, resource.to_dict(), locator)


@cache
def _program_text(file: str) -> str:
    return Path(file).read_text(errors="replace")


def run_passes(state: PassState, passes: Iterable[Callable[[PassState], PassState]]) -> Compilation:
    """Run further passes on a state and return the result."""
    with collector.pause_gc():
        for run in passes:
            state = run(state)
    if isinstance(state.tree, CommitTree):
        state = replace(state, diagnostics=(*state.diagnostics, *checkout_problems(state.tree)))
    program = state.program or Program((), lambda path: None)
    problems = without_repeats(state.diagnostics)
    causes = trace_causes(state.tree, state.documents, problems)
    found, untraced = (tuple(sort_diagnostics(map(redact_diagnostic, each))) for each in (causes, problems))
    return Compilation(state.tree, program, state.manifests, found, untraced)


def checkout_problems(tree: CommitTree) -> list[Diagnostic]:
    """Return an error for each file of a compile that the checkout has not as the commit has it."""
    config, _ = load_config(tree)
    wanted = environment_paths(config, tree.environment)
    for path in tree.paths():
        if path.startswith(f"{PROJECT_DIRECTORY}/"):  # its settings are read from the checkout
            tree.read(path)
    found = dict.fromkeys(tree.differing, "differs from")
    found |= {path: "is not in" for path in tree.uncommitted if is_selected(wanted, config.exclude, path)}
    hint = (
        "commit it, or remove what changes it: a step of the pipeline, or `working-tree-encoding`, `ident`, `eol` or "
        "`filter` in .gitattributes; `--source work-tree` compiles the checkout"
    )
    return [
        Diagnostic("checkout-differs", f"this file {how} the commit {tree.commit[:10]}", Span(path), hint=hint)
        for path, how in sorted(found.items())
    ]


def policies_of(compilation: Compilation, tip: Tree | None = None) -> tuple[Diagnostic, ...]:
    """Return the policy findings for a compilation without errors that skipped the policy pass.

    `tip`: judge by the policies of this tree instead; those that fail are not reported.
    """
    tree = tip or compilation.tree
    rules = rules_of(load_config(tree)[0], tree.paths())
    if rules is None:
        return ()
    found = judge_specs(rules, tree, compilation.program.items, compilation.manifests)
    return tuple(
        sort_diagnostics(redact_diagnostic(problem) for item, problem in found if item is not None or tip is None)
    )
