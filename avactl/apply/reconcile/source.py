"""Sources of specs: a working directory as it is, or the newest commit of a branch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from avactl.spec.repository.checkout import open_tree
from avactl.spec.repository.git import GitAccess, GitError, git_work_tree, init_bare, locate_repository, run_git
from avactl.spec.repository.git_tree import GitTree, find_commit
from avactl.spec.repository.tree import Tree


@dataclass(frozen=True, slots=True)
class SourceRevision:
    """A revision of the specs to compile."""

    tree: Tree
    commit: str
    """Full commit hash; empty: a working directory."""
    repository: str
    """Identity of the repository that owns the inventory; empty: unknown."""
    url: str = ""
    """URL of the repository, without credentials; empty: local only."""


class WorkingDirectory:
    """The contents of a directory, committed or not."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def newest(self) -> SourceRevision:
        """Return the directory, with its commit if nothing in it is uncommitted. Raises GitError in CI only."""
        try:
            url = origin_url(self._root)
            changed = git_work_tree(
                self._root,
                "status",
                "--porcelain",
                "--untracked-files=normal",
                "--no-renames",
                "--ignore-submodules=all",
                "--",
                locate_repository(self._root).pathspec,
            ).strip()
            commit = "" if changed else find_commit(self._root, "HEAD")
            repository = _repository_identity(self._root, url)
        except GitError:
            return SourceRevision(open_tree(self._root), "", "")
        return SourceRevision(open_tree(self._root), commit, repository, url)


class SourceBranch:
    """The newest commit of a branch, of a remote repository that is fetched or of a local one as it is."""

    def __init__(self, repository: str, branch: str, path: str = "", *, cache: Path | None = None) -> None:
        """`cache`: directory for the clone; None: `repository` is a local directory, read in place.

        `path`: directory of the specs in the repository.
        """
        self._repository, self._branch, self._path = repository, branch, path
        self._copy = None
        if cache is not None:
            name = re.sub(r"[^A-Za-z0-9]+", "-", without_credentials(repository)).strip("-")[-40:]
            self._copy = cache / f"{name}-{hashlib.sha256(repository.encode()).hexdigest()[:12]}.git"

    def newest(self) -> SourceRevision:
        """Fetch and return the newest commit. Raises GitError."""
        if self._copy is None:
            directory = Path(self._repository)
            url = origin_url(directory)
            tree = GitTree(directory / self._path, self._branch)
            return SourceRevision(tree, tree.commit, _repository_identity(directory, url), url)
        reference = f"refs/heads/{self._branch}"
        try:
            if not (self._copy / ".git" / "HEAD").exists():
                init_bare(self._copy)
            fetch = ("fetch", "--quiet", "--no-tags", "--recurse-submodules=no")
            refspec = f"+{reference}:{reference}"
            run_git(self._copy, *fetch, "--", self._repository, refspec, access=GitAccess.REMOTE)
        except GitError as error:
            if "couldn't find remote ref" in str(error):
                raise GitError(f"{without_credentials(self._repository)} has no branch `{self._branch}`") from None
            raise
        tree = GitTree(self._copy / self._path, reference)
        url = without_credentials(self._repository)
        return SourceRevision(tree, tree.commit, _repository_identity(self._copy, url), url)


def origin_url(directory: Path) -> str:
    """Return the URL of a clone's origin, without credentials; empty: none. Raises GitError outside of git."""
    run_git(directory, "rev-parse", "--git-dir")
    try:
        return without_credentials(run_git(directory, "remote", "get-url", "origin").decode().strip())
    except GitError:
        return ""


def without_credentials(url: str) -> str:
    """Return a URL without credentials, safe to print."""
    return re.sub(r"^([a-z+]+://)[^/]*@", r"\1", url)


def _repository_identity(directory: Path, url: str) -> str:
    """Return one identity for a repository, however it is reached: its first commit, else host and path of its URL."""
    try:
        if run_git(directory, "rev-parse", "--is-shallow-repository").strip() != b"true":
            branch = "--all" if run_git(directory, "rev-parse", "--is-bare-repository").strip() == b"true" else "HEAD"
            first = run_git(directory, "rev-list", "--max-parents=0", branch).decode().split()
            return min(first) if first else ""
    except GitError:
        pass
    return url
