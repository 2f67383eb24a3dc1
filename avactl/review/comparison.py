"""Compile and compare the base and the head of a pull request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from avactl.compiler import PASSES, Compilation
from avactl.compiler.driver import compile_change, policies_of
from avactl.diff import Diff, compare
from avactl.diff.revisions import changed_settings, open_sides
from avactl.review.comment import Review, Section
from avactl.source.git import locate
from avactl.source.git_tree import GitTree

LOWERING = PASSES[:-1]
"""All passes but the policies: a change that violates a policy is still shown."""
SectionOf = Callable[[Compilation, Compilation, Diff], Section | None]
"""Builds a section of the comment from base, head and their diff; None if there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The comparison, and the review to publish."""

    review: Review
    head: Compilation
    identity: str
    """Path of the specs in the git repository, `.` at its root; a repository may hold several spec repositories."""

    def source(self, file: str) -> str | None:
        """Return the text of a file of the head."""
        data = self.head.program.read_file(file)
        if data is None:
            try:
                data = self.head.tree.read(file)
            except OSError:
                return None
        return data.decode("utf-8", "replace")


def look(root: Path, base: str, head: str | None, sections: Sequence[SectionOf] = ()) -> Sides:
    """Compile the merge base with `base`, and the head. Raises GitError."""
    trees = open_sides(root, base, head, common=True)
    before, after = compile_change(trees.base, trees.head, LOWERING)
    identity = locate(root).prefix.encode("utf-8", "replace").decode().rstrip("/") or "."
    if trees.head.environment:
        identity += f" (environment {trees.head.environment})"
    new = trees.head.commit[:7] if isinstance(trees.head, GitTree) else "the work tree"
    return Sides(review_of(before, after, trees.base.commit[:7], new, sections), after, identity)


def review_of(
    before: Compilation, after: Compilation, base: str, head: str, sections: Sequence[SectionOf] = ()
) -> Review:
    """Review two compilations made by LOWERING; `base` and `head` are their display names."""
    if not after.ok:
        return Review(base, head, (*changed_settings(before.tree, after.tree), *after.diagnostics))
    changes = compare(before, after)
    judged = policies_of(after)
    if judged:
        known = {(d.rule, d.message) for d in policies_of(before)} if before.ok else set()
        warnings = [d for d in judged if d.severity == "warning" and (d.rule, d.message) not in known]
        changes = replace(changes, warnings=(*changes.warnings, *warnings))
    found = [] if changes.empty else [make(before, after, changes) for make in sections]
    errors = [d for d in judged if d.severity == "error"]
    return Review(base, head, errors, changes, [section for section in found if section])
