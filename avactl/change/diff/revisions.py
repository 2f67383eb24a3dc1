"""The two sides of a diff: git revisions, or the work tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from avactl.compiler.policies.deciding_files import OF_PYTHON, deciding_files
from avactl.compiler.selection import CONFIG_FILE
from avactl.diagnostics import Diagnostic, Span
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.repository.checkout import CommitTree, open_tree
from avactl.spec.repository.git_tree import GitTree, find_commit, merge_base
from avactl.spec.repository.tree import DirTree, Tree


class RevisionSides(NamedTuple):
    """The trees to compare."""

    base: GitTree
    head: GitTree | DirTree | CommitTree
    tip: GitTree
    """Tip of the branch that the head is to be merged into: its `owners` and policies judge the head.

    The merge base is the author's choice: a branch may fork from any old commit."""


def open_sides(root: Path, base: str = "HEAD", head: str | None = None, *, common: bool = False) -> RevisionSides:
    """Open the trees of a repository directory at `base` and at `head` (default: the work tree, with all edits).

    With `common`, the base is the merge base of the two: the diff is what a pull request adds, without later commits of
    its base branch. Nothing is checked out. Raises GitError.
    """
    tip = head or "HEAD"
    found = find_commit(root, base)  # if both are unknown, report the first
    old = GitTree(root, merge_base(root, base, tip) if common else found)
    new = open_tree(root) if head is None else GitTree(root, head)
    return RevisionSides(old, new, old if old.commit == found else GitTree(root, found))


def changed_settings(base: Tree, head: Tree) -> list[Diagnostic]:
    """Return a warning for each changed file that decides what specs may do, or what CI runs."""
    sides = deciding_files(base), deciding_files(head)
    hint = "check it as you check code that runs with the rights of the platform"
    found = []
    programs = []
    for path, why in sorted((sides[0].files | sides[1].files).items()):
        old, new = (side.read(path) for side in sides)
        if old == new:
            continue
        if why == OF_PYTHON:
            programs.append(path)
            continue
        text = "removed" if new is None else "added" if old is None else "changed"
        if path == CONFIG_FILE:
            text = _settings_text(_parse_settings(old), _parse_settings(new)) or text
        found.append(Diagnostic("security-setting", f"{path} {why}: {text}", Span(path), "warning", hint=hint))
    if programs:
        text = f"programs that compute specs changed: {', '.join(programs)}"
        hint = "read them: by the clock and the machine's files they can compute other specs where these are applied"
        found.append(Diagnostic("security-setting", text, Span(programs[0]), "warning", hint=hint))
    return sorted(found, key=lambda problem: problem.span.file != CONFIG_FILE)


def _parse_settings(data: bytes | None) -> dict[str, Any]:
    documents, _ = load_yaml(CONFIG_FILE, data or b"")
    return documents[0].value if documents and isinstance(documents[0].value, dict) else {}


def _settings_text(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the changed keys; of lists, the removed and added entries."""
    parts = []
    for key in [*old, *(key for key in new if key not in old)]:
        was, now = ([json.dumps(each) for each in _list_entries(side.get(key))] for side in (old, new))
        moves = [f"- {each}" for each in was if each not in now]
        moves += [f"+ {each}" for each in now if each not in was]
        if moves:
            parts.append(f"`{key}` {', '.join(moves)}")
        elif old.get(key) != new.get(key):
            parts.append(f"`{key}` in another order")
    return "; ".join(parts)


def _list_entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
