"""Compile and compare the base and the head of a pull request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from avactl.change.diff import Diff, compare
from avactl.change.diff.revisions import changed_settings, open_sides
from avactl.change.review.comment import CommentSection, Review
from avactl.compiler import PASSES, Compilation
from avactl.compiler.config import environment_paths, load_config
from avactl.compiler.driver import compile_change, policies_of
from avactl.compiler.selection import overlay_files, spec_files
from avactl.forges.forge import PipelineRun
from avactl.spec.repository.git import locate_repository
from avactl.spec.repository.git_tree import GitTree, commit_parents
from avactl.spec.repository.tree import Tree

LOWERING = PASSES[:-1]
"""All passes but the policies: a change that violates a policy is still shown."""
SectionOf = Callable[[Compilation, Compilation, Diff], CommentSection | None]
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


def base_of(root: Path, head: str, run: PipelineRun) -> str | None:
    """Return the revision that a pipeline's change is compared with; None if it is unknown. Raises GitError.

    Where the forge has merged the change for the pipeline (`refs/pull/7/merge`, merged results, merge trains), that is
    what it was merged into: the rest of the difference is the change, whatever the branch has become since.
    """
    found = commit_parents(root, head) if run.change else []
    return found[0] if found[1:] == [run.change] else run.target


def look(root: Path, base: str, head: str | None, sections: Sequence[SectionOf] = (), *, alone: bool = False) -> Sides:
    """Compile the merge base with `base`, and the head. Raises GitError.

    `alone`: no other environment of the repository is compared, so that its changes must be told.
    """
    trees = open_sides(root, base, head, common=True)
    before, after = compile_change(trees.base, trees.head, LOWERING, tip=trees.tip)
    identity = locate_repository(root).prefix.encode("utf-8", "replace").decode().rstrip("/") or "."
    if trees.head.environment:
        identity += f" (environment {trees.head.environment})"
    new = trees.head.commit[:7] if isinstance(trees.head, GitTree) else "the work tree"
    review = review_of(before, after, trees.base.commit[:7], new, sections, tip=trees.tip)
    if alone:
        review = replace(review, elsewhere=elsewhere(trees.base, trees.head))
    return Sides(review, after, identity)


def elsewhere(base: Tree, head: Tree) -> dict[str, list[str]]:
    """Return the changed files of other environments than that of the trees, by environment."""
    config, _ = load_config(head)
    mine = environment_paths(config, head.environment)
    paths = sorted({*base.paths(), *head.paths()})
    own = {*spec_files(mine.include, mine.exclude, paths), *overlay_files(mine.overlays, config.exclude, paths)}
    found: dict[str, list[str]] = {}
    for name, each in config.environments.items():
        files = spec_files([*each.include, *each.overlays], config.exclude, paths)
        changed = [path for path in files if path not in own and _content(base, path) != _content(head, path)]
        if name != head.environment and changed:
            found[name] = changed
    return found


def _content(tree: Tree, path: str) -> bytes | None:
    try:
        return tree.read(path)
    except OSError:
        return None


def review_of(
    before: Compilation,
    after: Compilation,
    base: str,
    head: str,
    sections: Sequence[SectionOf] = (),
    *,
    tip: Tree | None = None,
) -> Review:
    """Review two compilations made by LOWERING; `base` and `head` are their display names.

    The policies of `tip`, what the head is to be merged into, judge it as well as its own.
    """
    if not after.ok:
        return Review(base, head, (*changed_settings(before.tree, after.tree), *after.diagnostics))
    changes = compare(before, after)
    judged = policies_of(after)
    if tip is not None and changed_settings(tip, after.tree):
        own = {(d.rule, d.message) for d in judged}
        more = (d for d in policies_of(after, tip) if (d.rule, d.message) not in own)
        judged += tuple(replace(d, message=f"{d.message}; this is a policy of the base branch") for d in more)
    if judged:
        known = {(d.rule, d.message) for d in policies_of(before)} if before.ok else set()
        warnings = [d for d in judged if d.severity == "warning" and (d.rule, d.message) not in known]
        changes = replace(changes, warnings=(*changes.warnings, *warnings))
    found = [] if changes.empty else [make(before, after, changes) for make in sections]
    errors = [d for d in judged if d.severity == "error"]
    return Review(base, head, errors, changes, [section for section in found if section])
