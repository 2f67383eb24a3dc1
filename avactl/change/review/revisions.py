"""Revisions of code that git servers do not have. Unlike a compile, this needs the network."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item, Program
from avactl.spec.repository.revisions import has_revision, is_commit


def revision_problems(program: Program) -> Iterator[Diagnostic]:
    """Yield the revisions in `code.git` that do not exist. Each is asked for once. Raises GitError."""
    known: dict[tuple[str, str], bool] = {}
    for item in program.items:
        git = getattr(getattr(item.spec, "code", None), "git", None)
        if git is None:
            continue
        key = (git.url, git.ref)
        if key not in known:
            known[key] = has_revision(*key)
        if not known[key]:
            yield _problem(item, *key)


def _problem(item: Item, url: str, ref: str) -> Diagnostic:
    noun = "commit" if is_commit(ref) else "commit, tag or branch"
    return Diagnostic(
        "missing-revision",
        f"{url} has no {noun} `{ref}`",
        item.span("spec", "code", "git", "ref"),
        hint="push it, or write the full name of a commit that is on the server: `git rev-parse HEAD`",
    )
