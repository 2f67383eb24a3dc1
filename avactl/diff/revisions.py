"""The two sides of a diff: git revisions, or the work tree."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from avactl.source.git_tree import GitTree, find_commit, merge_base
from avactl.source.tree import DirTree


class Sides(NamedTuple):
    """The trees to compare."""

    base: GitTree
    head: GitTree | DirTree


def open_sides(root: Path, base: str = "HEAD", head: str | None = None, *, common: bool = False) -> Sides:
    """Open the trees of a repository directory at `base` and at `head` (default: the work tree, with all edits).

    With `common`, the base is the merge base of the two: the diff is what a pull request adds, without later commits of
    its base branch. Nothing is checked out. Raises GitError.
    """
    tip = head or "HEAD"
    if common:
        base = merge_base(root, base, tip)
    elif head is not None:
        find_commit(root, base)  # if both are unknown, report the first
    return Sides(GitTree(root, base), DirTree(root) if head is None else GitTree(root, head))
