"""The tree that a command compiles: the work tree, or in CI the commit that is checked out.

A checkout need not have the files of its commit: attributes (`working-tree-encoding`, `ident`, `eol`, filters) and
steps of a pipeline change them. What was reviewed is the commit, so CI compiles that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from avactl.forges import FORGES
from avactl.spec.repository.tree import DirTree

SOURCE_VARIABLE = "AVACTL_SOURCE"
"""Variable with what to compile: `commit` or `work-tree`; `--source` sets it. Default: in CI the commit."""
COMMIT, WORK_TREE = "commit", "work-tree"


class CommitTree:
    """The files of the commit HEAD; those that differ in the checkout are recorded as they are read."""

    def __init__(self, root: Path, only: Iterable[str] | None = None, *, environment: str | None = None) -> None:
        """`only`: the given files and directories. Raises GitError."""
        from avactl.spec.repository.git_tree import GitTree  # only in CI: start-up counts

        self.root = root
        self._files = GitTree(root, "HEAD", environment=environment)
        self._checkout = DirTree(root, environment="")
        self._only = tuple(only) if only is not None else None
        self.commit = self._files.commit
        self.environment = self._files.environment
        self.uncommitted = sorted({*self._checkout.paths()}.difference(self._files.paths()))
        """Files that only the checkout has."""
        self.differing: set[str] = set()
        """Files that were read and are others in the checkout."""

    @property
    def skipped(self) -> Mapping[str, str]:
        return self._files.skipped

    def paths(self) -> list[str]:
        """Return the sorted paths of all files from the root; with `only`, of those below the given paths."""
        if self._only is None:
            return self._files.paths()
        return [path for path in self._files.paths() if path in self._only or path.startswith(self._folders)]

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(f"{path}/" for path in self._only or ())

    def size(self, path: str) -> int:
        return self._files.size(path)

    def read(self, path: str) -> bytes:
        """Return a file's content in the commit."""
        data = self._files.read(path)
        there = None
        with suppress(OSError):
            there = self._checkout.read(path)
        if there != data:
            self.differing.add(path)
        return data


def open_tree(root: Path, only: Iterable[str] | None = None) -> DirTree | CommitTree:
    """Return the commit that is checked out, if that was asked for or this is CI; otherwise the work tree.

    In CI, a directory outside of git or of the commit is compiled as it is. Raises GitError.
    """
    asked = os.environ.get(SOURCE_VARIABLE, "")
    if asked == WORK_TREE or (asked != COMMIT and not (is_ci() and _is_committed(root))):
        return DirTree(root, only)
    return CommitTree(root, only)


def is_ci() -> bool:
    """Return True in a CI pipeline, by the variables of the forges and most other systems."""
    names = ("CI", *(forge.marker for forge in FORGES))
    values = (os.environ.get(name, "").lower() for name in names)
    return any(value not in ("", "0", "false") for value in values)


def _is_committed(root: Path) -> bool:
    """Return True if the commit HEAD has files below a directory. Raises GitError."""
    from avactl.spec.repository.git import GitError, locate_repository, run_git

    try:
        place = locate_repository(root)
    except GitError:
        return False
    if not run_git(root, "rev-list", "--all", "--max-count=1"):
        return False  # no commit yet
    return bool(run_git(root, "ls-tree", "--full-tree", "HEAD", *(["--", place.prefix] if place.prefix else [])))
