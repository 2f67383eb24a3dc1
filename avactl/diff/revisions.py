"""The two sides of a diff: revisions of a git repository, or the work tree as it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from avactl.source.git_tree import GitTree, find_commit, merge_base
from avactl.source.tree import DirTree


class Sides(NamedTuple):
    """What is compared."""

    base: GitTree
    head: GitTree | DirTree


def open_sides(root: Path, base: str = "HEAD", head: str | None = None, *, common: bool = False) -> Sides:
    """The trees of a repository directory at `base` and at `head`, which by default is the work tree with all edits.

    With `common`, the base is the newest commit that the two have in common: what a pull request adds, without what
    its base branch got meanwhile. Nothing is checked out. Raises GitError.
    """
    tip = head or "HEAD"
    if common:
        base = merge_base(root, base, tip)
    elif head is not None:
        find_commit(root, base)  # of two that are unknown, the first one speaks
    return Sides(GitTree(root, base), DirTree(root) if head is None else GitTree(root, head))
