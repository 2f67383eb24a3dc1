"""Report a cause once: problems of many specs that follow from one mistake give one problem, at the mistake."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from yaml import ScalarNode, YAMLError

from avactl.compiler.selection import CONFIG_FILE
from avactl.diagnostics import Diagnostic, Note, Reference, Span, sort_diagnostics
from avactl.diagnostics.model import GPU_MODEL, OWNER, SPEC_PATH
from avactl.diagnostics.suggest import WordIndex, closest_word
from avactl.spec.documents.document import Document, Path
from avactl.spec.platform.machine_type import MachineType
from avactl.spec.platform.team import Team
from avactl.spec.repository.tree import Tree

MAX_NOTES = 5
"""Maximum number of places that a problem names."""

Place = tuple[int, int]
"""Line and column of a file, from 1."""

_FOLLOWING_CODES = ("missing-reference", "gpu-not-in-cluster", "taint-not-tolerated")
"""Problems of a spec that refers to what is in error; all others may be there without it."""


def trace_causes(tree: Tree, documents: Sequence[Document], problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the problems without those that another one explains."""
    problems = sort_diagnostics(problems)
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return list(problems)
    if any(problem.reference is not None and problem.reference.kind == SPEC_PATH for problem in errors):
        # Specs of the missing path may be what others refer to.
        problems = [each for each in problems if each.span.file == CONFIG_FILE or each.code != "missing-reference"]
    kept = _without_explained(tree, problems)
    return _with_renames(documents, _with_owners(tree, documents, kept))


def _without_explained(tree: Tree, problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Remove references with a note at a value that is itself in error."""
    by_file: dict[str, list[Place]] = {}
    for problem in problems:
        if problem.severity == "error" and not problem.notes:
            by_file.setdefault(problem.span.file, []).append(problem.span[1:3])
    for places in by_file.values():
        places.sort()
    ends = cache(lambda file: _value_ends(tree, file))

    def is_in_error(span: Span) -> bool:
        places = by_file.get(span.file, [])
        first = bisect_left(places, span[1:3])
        return first < len(places) and places[first] < ends(span.file).get(span[1:3], span[1:3])

    def is_explained(problem: Diagnostic) -> bool:
        return problem.code in _FOLLOWING_CODES and any(
            note.span.file != problem.span.file and is_in_error(note.span) for note in problem.notes
        )

    return [problem for problem in problems if not is_explained(problem)]


def _value_ends(tree: Tree, file: str) -> dict[Place, Place]:
    """Return the end of the innermost value that begins, with or without its key, at each place of a YAML file."""
    from avactl.spec.documents.yaml import compose_documents

    if file.endswith(".py"):
        return {}
    try:
        nodes = compose_documents(_read_text(tree, file))
    except YAMLError:
        return {}
    ends: dict[Place, Place] = {}
    seen: set[int] = set()  # aliases repeat nodes
    while nodes:
        node = nodes.pop()
        if id(node) in seen or isinstance(node, ScalarNode):
            continue
        seen.add(id(node))
        for inner in node.value:
            key, value = inner if isinstance(inner, tuple) else (inner, inner)
            for start in (key, value):
                place, end = _place(start.start_mark), _place(value.end_mark)
                ends[place] = min(end, ends.get(place, end))
            nodes.append(value)
    return ends


def _place(mark: Any) -> Place:
    return mark.line + 1, mark.column + 1


def _read_text(tree: Tree, file: str) -> str:
    try:
        return tree.read(file).decode("utf-8-sig", "replace")
    except OSError:
        return ""


def _with_owners(tree: Tree, documents: Sequence[Document], problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Report an entry of `owners` with a team that does not exist, in place of the specs that it then refuses."""
    unknown = {problem.span for problem in problems if problem.code == "missing-reference"}
    problems = [problem for problem in problems if problem.code != "not-owner" or problem.span not in unknown]
    teams = {str(doc.get("metadata", "name")) for doc in documents if doc.get("kind") == Team.KIND}
    refused: dict[Reference, list[Diagnostic]] = {}
    for problem in problems:
        about = problem.reference
        if about is not None and about.kind == OWNER and about.name not in teams:
            refused.setdefault(about, []).append(problem)
    if not refused:
        return list(problems)
    from avactl.spec.documents.yaml import load_yaml

    settings, _ = load_yaml(CONFIG_FILE, _read_text(tree, CONFIG_FILE).encode())
    places = {team: path for path, team in _owner_teams(settings)}
    found: list[Diagnostic] = []
    explained: set[Diagnostic] = set()
    for (_, team, meant), those in refused.items():
        if team in places:
            explained.update(those)
            span, hint = settings[0].span(*places[team]), f"did you mean `{meant}`?"
            message, about = f"`owners`: unknown {Team.KIND} `{team}`", Reference(Team.KIND, team, meant)
            found.append(Diagnostic("missing-reference", message, span, hint=hint, reference=about))
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
    references = [(problem, problem.reference) for problem in problems if problem.reference is not None]
    if len(references) < 2:
        return list(problems)
    declared = {key: place for doc in documents for key, place in _declarations(doc)}
    uses = Counter(word for doc in documents for word in _words(doc.value))
    models = WordIndex(name for kind, name in declared if kind == GPU_MODEL)
    groups: dict[Reference, list[Diagnostic]] = {}
    for problem, about in references:
        if about.kind == GPU_MODEL and not about.meant:  # the cluster has no such model, but another one may
            about = about._replace(meant=models.closest(about.name) or "")
        groups.setdefault(about, []).append(problem)
    found: dict[Diagnostic, Diagnostic] = {}
    explained: set[Diagnostic] = set()
    for (kind, word, near), those in groups.items():
        if len(those) < 2 or (kind, near) not in declared:
            continue
        doc, path = declared[kind, near]
        is_unused = uses["gpu", near] == 0 if kind == GPU_MODEL else uses["", near] == 1  # its own name
        # A name that is not similar is the former one only where the file says so.
        if is_unused and (closest_word(word, [near]) or any(each.span.file == doc.file for each in those)):
            explained.update(those)
            found[those[0]] = _rename_problem(kind, word, near, doc.span(*path), those)
    return [found.get(each, each) for each in problems if each in found or each not in explained]


def _declarations(doc: Document) -> Iterator[tuple[tuple[str, str], tuple[Document, Path]]]:
    """Yield what a spec declares: itself by its kind, and a machine type the model of its GPUs."""
    kind = str(doc.get("kind"))
    yield (kind, str(doc.get("metadata", "name"))), (doc, ("metadata", "name"))
    if kind == MachineType.KIND:
        yield (GPU_MODEL, str(doc.get("spec", "gpus", "model"))), (doc, ("spec", "gpus", "model"))


def _words(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of a value; that of a key `gpu` with this key, too."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _words(inner, "gpu" if name == "gpu" else "")
    elif isinstance(value, str):
        yield "", value
        if key:
            yield key, value


def _rename_problem(kind: str, word: str, near: str, span: Span, those: list[Diagnostic]) -> Diagnostic:
    count = len(those)
    notes = tuple(Note(each.span, f"refers to `{word}`") for each in those[:MAX_NOTES])
    message = f"nothing refers to {kind} `{near}`, but {count} references are to `{word}`, which no spec declares"
    hint = f"write `{word}`; or `{near}` in the {count} references"
    return replace(those[0], message=message, span=span, label="", hint=hint, notes=notes, fix="")
