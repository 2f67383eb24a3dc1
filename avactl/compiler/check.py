"""Pass 5: the kinds' checks of each spec, alone and together with the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from avactl.compiler.internal_error import defect_diagnostic
from avactl.compiler.lint.owned_fields import owned_fields
from avactl.compiler.lint.slips import likely_typos
from avactl.compiler.lint.unmade import dangling_references
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Diagnostic, Note
from avactl.program import registry
from avactl.program.checks.members import member_problems
from avactl.program.program import Item, Program


def check(state: PassState) -> PassState:
    """Return the problems that the kinds find in the resolved program."""
    program = state.program
    if program is None:
        return state
    problems: list[Diagnostic] = []
    for name in registry.kind_names():
        items = program.of(name)
        if not items:
            continue
        kind = registry.get_kind(name)
        for item in items:
            try:
                problems += problems_of(item, program)
            except Exception as error:
                problems.append(defect_diagnostic(item, error))
        try:
            problems += kind.check_all(program)
        except Exception as error:
            problems.append(defect_diagnostic(items[0], error))
    return replace(state, diagnostics=state.diagnostics + tuple(problems))


def problems_of(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Return the problems of one spec: those found by its kind, and roles that never fit on the cluster's machines.

    Problems of values from other files (defaults, templates, overlays) have a note that names the spec.
    """
    for problem in _run_checks(item, program):
        own = item.doc.file in (problem.span.file, *(note.span.file for note in problem.notes))
        if own or not _from_layer(item, problem.span.file):
            yield problem
        else:
            note = Note(item.span("metadata", "name"), f"of {item}")
            yield replace(problem, notes=(*problem.notes, note), hint=_inherited_hint(item, problem))


_REMOVE_HINT = re.compile(r"remove (?:the key|`(\w+)`)").match


def _inherited_hint(item: Item, problem: Diagnostic) -> str:
    """Return the remedy for a value that a spec inherits: others need it, so the spec goes without it by `null`."""
    found = _REMOVE_HINT(problem.hint)
    layers = getattr(item.doc.locator, "layers", ())
    roles = {layer.role for layer in layers if layer.document.file == problem.span.file}
    if found is None or "overlay" in roles:
        return problem.hint
    null = f"write `{found[1]}: null`" if found[1] else "write `null` for the key"
    return f"{null} in the spec, which inherits the value; or {problem.hint} here, for all that inherit it"


def _from_layer(item: Item, file: str) -> bool:
    """Return True if the spec has a layer in a file."""
    from avactl.compiler.layers.document import LayeredLocator

    locator = item.doc.locator
    return isinstance(locator, LayeredLocator) and any(layer.document.file == file for layer in locator.layers)


def _run_checks(item: Item, program: Program) -> Iterator[Diagnostic]:
    kind = registry.get_kind(item.kind)
    yield from kind.check(item, program)
    yield from member_problems(item, program)
    yield from likely_typos(item)
    yield from dangling_references(item, program)
    yield from owned_fields(item, program)
    if kind.workload is not None and not kind.workload.checks_capacity:
        from avactl.program.capacity.capacity import role_problems

        yield from role_problems(item, program)
