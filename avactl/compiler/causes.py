"""Report a cause once: problems of many specs that follow from one mistake give one problem, at the mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from avactl.compiler.selection import CONFIG_FILE
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.suggest import closest_word, suggested_word
from avactl.spec.documents.document import Document, Path
from avactl.spec.repository.tree import Tree

MAX_NOTES = 5
"""Maximum number of places that a problem names."""

_REFERENCE_CODES = ("missing-reference", "gpu-not-in-cluster")
_missing_name = re.compile(r"(?:unknown|no) (\w+) `([^`]+)`").search
_other_name = re.compile(r"no spec names \w+ `([^`]+)`").match
_DECLARED_AT: dict[str, tuple[str, Path]] = {"GPU": ("MachineType", ("spec", "gpus", "model"))}
"""Names that are not those of specs: the kind of spec that declares one, and its path there."""


def trace_causes(tree: Tree, documents: Sequence[Document], problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the problems without those that another one explains."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return list(problems)
    if any(problem.span.file == CONFIG_FILE and problem.message.startswith("include[") for problem in errors):
        # Specs of the missing path may be what others refer to.
        problems = [each for each in problems if each.span.file == CONFIG_FILE or each.code != "missing-reference"]
    kept = _without_explained(tree, problems)
    return _with_renames(documents, _with_owners(tree, documents, kept))


def _without_explained(tree: Tree, problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Remove the problems with a note at a value that is itself in error."""
    by_file: dict[str, list[Span]] = {}
    for problem in problems:
        if problem.severity == "error" and not problem.notes:
            by_file.setdefault(problem.span.file, []).append(problem.span)
    blocks: dict[Span, bool] = {}

    def is_in_error(span: Span) -> bool:
        if span not in blocks:
            blocks[span] = _has_span(_read_lines(tree, span.file), span, by_file[span.file])
        return blocks[span]

    def is_explained(problem: Diagnostic) -> bool:
        return any(
            note.span.file in by_file and note.span.file != problem.span.file and is_in_error(note.span)
            for note in problem.notes
        )

    return [problem for problem in problems if not is_explained(problem)]


def _read_lines(tree: Tree, file: str) -> list[str]:
    try:
        return tree.read(file).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def _has_span(lines: list[str], block: Span, spans: Iterable[Span]) -> bool:
    """Return True if a span lies in the value of the key at `block`: on its line, or on the deeper lines below."""
    last = block.line
    for line in lines[block.line :]:
        if line.strip() and not line.startswith((" " * block.column, " " * (block.column - 1) + "- ")):
            break
        last += 1
    return any(
        block.line < span.line <= last or (span.line == block.line and span.column >= block.column) for span in spans
    )


def _with_owners(tree: Tree, documents: Sequence[Document], problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Report an entry of `owners` with a team that does not exist, in place of the specs that it then refuses."""
    refused = [problem for problem in problems if problem.code == "not-owner"]
    if not refused:
        return list(problems)
    unknown = {problem.span for problem in problems if problem.code == "missing-reference"}
    problems = [problem for problem in problems if problem.code != "not-owner" or problem.span not in unknown]
    from avactl.spec.documents.yaml import load_yaml

    teams = {str(doc.get("metadata", "name")) for doc in documents if doc.get("kind") == "Team"}
    settings, _ = load_yaml(CONFIG_FILE, "\n".join(_read_lines(tree, CONFIG_FILE)).encode())
    found: list[Diagnostic] = []
    explained: set[Diagnostic] = set()
    for path, team in _owner_teams(settings):
        near = closest_word(team, teams) if team not in teams else None
        those = [
            each for each in refused if f"allows team `{team}` " in each.hint and f" of team {near}" in each.message
        ]
        if near is not None and those:
            explained.update(those)
            span = settings[0].span(*path)
            found.append(
                Diagnostic(
                    "missing-reference", f"`owners`: unknown Team `{team}`", span, hint=f"did you mean `{near}`?"
                )
            )
    return [*found, *(problem for problem in problems if problem not in explained)]


def _owner_teams(settings: Sequence[Document]) -> Iterator[tuple[Path, str]]:
    entries = settings[0].get("owners") if settings else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        teams = entry.get("teams") if isinstance(entry, dict) else None
        for at, team in enumerate(teams if isinstance(teams, list) else ()):
            if isinstance(team, str):
                yield ("owners", index, "teams", at), team


def _with_renames(documents: Sequence[Document], problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Report a name that no spec uses, in place of the references of several specs to the name that it had before."""
    groups: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for problem in problems:
        missing = (
            _missing_name(problem.message) if problem.code in ("missing-reference", "gpu-not-in-cluster") else None
        )
        other = _other_name(problem.hint)
        near = suggested_word(problem.hint) or (other[1] if other else "")
        if missing is not None and missing[1] in _DECLARED_AT and not near:
            near = closest_word(missing[2], _own_words(documents, missing[1])) or ""
        if missing is not None and near:
            groups.setdefault((missing[1], missing[2], near), []).append(problem)
    found: dict[Diagnostic, Diagnostic] = {}
    explained: set[Diagnostic] = set()
    for (kind, word, near), those in groups.items():
        declaration = _declaration(documents, kind, near) if len(those) > 1 else None
        if declaration is None:
            continue
        doc, path = declaration
        # A name that is not similar is the former one only where the file says so.
        similar = closest_word(word, [near]) is not None or any(each.span.file == doc.file for each in those)
        key = "gpu" if kind in _DECLARED_AT else ""
        if similar and not any(_uses_word(other.value, near, path if other is doc else (), key) for other in documents):
            explained.update(those)
            found[those[0]] = _rename_problem(kind, word, near, doc.span(*path), those)
    return [found.get(each, each) for each in problems if each in found or each not in explained]


def _own_words(documents: Sequence[Document], kind: str) -> list[str]:
    of_kind, path = _DECLARED_AT[kind]
    return [str(doc.get(*path)) for doc in documents if doc.get("kind") == of_kind]


def _declaration(documents: Sequence[Document], kind: str, name: str) -> tuple[Document, Path] | None:
    of_kind, path = _DECLARED_AT.get(kind, (kind, ("metadata", "name")))
    return next(((doc, path) for doc in documents if doc.get("kind") == of_kind and doc.get(*path) == name), None)


def _uses_word(value: Any, word: str, but: Path, under: str = "") -> bool:
    """Return True if a value contains a text, at another path than `but`; with `under`, as the value of that key."""
    if isinstance(value, dict | list):
        entries: Collection[Any] = value.items() if isinstance(value, dict) else list(enumerate(value))
        return any(
            _uses_word(inner, word, but[1:] if but[:1] == (key,) else (), under)
            for key, inner in entries
            if (key,) != but and not (under and isinstance(inner, str) and key != under)
        )
    return bool(value == word)


def _rename_problem(kind: str, word: str, near: str, span: Span, those: list[Diagnostic]) -> Diagnostic:
    count = len(those)
    notes = tuple(Note(each.span, f"refers to `{word}`") for each in those[:MAX_NOTES])
    message = f"nothing refers to {kind} `{near}`, but {count} references are to `{word}`, which no spec declares"
    hint = f"write `{word}`; or `{near}` in the {count} references"
    return replace(those[0], message=message, span=span, label="", hint=hint, notes=notes, fix="")
