"""Apply the remedies of problems that have exactly one: only the wrong text changes, comments and order stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import suggested_word
from avactl.spec.documents.scalars import resolve_plain
from avactl.spec.repository.tree import OverlayTree, Tree

_MAX_ROUNDS = 20
"""Maximum number of compiles: a remedy may reveal the next problem."""


class Fix(NamedTuple):
    """A replacement that was made."""

    file: str
    line: int
    column: int
    old: str
    new: str


def apply_fixes(
    tree: Tree, problems_of: Callable[[Tree], Sequence[Diagnostic]], concerns: Callable[[str], bool]
) -> tuple[dict[str, str], list[Fix]]:
    """Return the new texts of the files that `concerns` accepts, and what was replaced.

    `problems_of` compiles a tree. A replacement after which its line still has an error is not made.
    """
    texts: dict[str, str] = {}
    made: list[Fix] = []
    refused: set[tuple[str, ...]] = set()
    problems = problems_of(tree)
    for _ in range(_MAX_ROUNDS):
        new, changes = _fix_round(
            tree, texts, [d for d in problems if concerns(d.span.file) and _problem_key(d) not in refused]
        )
        if not changes:
            break
        after = problems_of(_with_texts(tree, new))
        left, wrong = {_problem_key(d) for d in after}, {d.span[:2] for d in after if d.severity == "error"}
        grew = len(wrong) > len({d.span[:2] for d in problems if d.severity == "error"})
        broken = {d.span[:2] for d in after if d.code.startswith("yaml-")}  # such as a key that is there twice
        stuck = {
            _problem_key(d) for _, d in changes if _problem_key(d) in left or d.span[:2] in (wrong if grew else broken)
        }
        if stuck:
            refused |= stuck  # and again, without these
        else:
            texts, problems = new, after
            made += [fix for fix, _ in changes]
    return texts, sorted(made)


def _problem_key(d: Diagnostic) -> tuple[str, ...]:
    return d.span.file, str(d.span.line), d.code, d.message


def _fix_round(
    tree: Tree, texts: dict[str, str], problems: Sequence[Diagnostic]
) -> tuple[dict[str, str], list[tuple[Fix, Diagnostic]]]:
    """Replace what has one remedy, from the end of each file, so that earlier places stay where they are."""
    texts, made = dict(texts), []
    begun: dict[tuple[str, int], int] = {}
    for d in sorted(problems, key=lambda d: d.span[:3], reverse=True):
        if d.span.end_column > begun.get(d.span[:2], d.span.end_column):
            continue  # it overlaps with the last one
        text = texts[d.span.file] if d.span.file in texts else _read(tree, d.span.file)
        replaced = None if text is None else _replace(text, d)
        if replaced is not None:
            texts[d.span.file], fix = replaced
            begun[d.span[:2]] = d.span.column
            made.append((fix, d))
    return texts, made


def _read(tree: Tree, path: str) -> str | None:
    """Return the text of a file; None if it is not UTF-8, has CRLF line ends, or cannot be read."""
    try:
        text = tree.read(path).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\r" in text or text.startswith("\ufeff") else text


def _with_texts(tree: Tree, texts: dict[str, str]) -> Tree:
    for path, text in texts.items():
        tree = OverlayTree(tree, path, text.encode())
    return tree


_IS_RAW = re.compile(r"""["'\[{]|-?[0-9.]+$|(true|false)$""").match


def _replace(text: str, d: Diagnostic) -> tuple[str, Fix] | None:
    new = d.fix or suggested_word(d.hint)
    if not new or d.secret or not d.span.end_column or d.span.file.endswith(".py"):
        return None
    lines = text.split("\n")
    if d.span.line > len(lines):
        return None
    line = lines[d.span.line - 1]
    start, end = d.span.column - 1, d.span.end_column - 1
    old = line[start:end]
    if not _IS_RAW(new):
        if old[:1] in "\"'" and old[-1:] == old[:1]:
            new = f"{old[0]}{new}{old[0]}"
        elif not isinstance(resolve_plain(new), str):
            new = f'"{new}"'
    if old == new or not old:
        return None
    lines[d.span.line - 1] = line[:start] + new + line[end:]
    return "\n".join(lines), Fix(d.span.file, d.span.line, d.span.column, old, new)
