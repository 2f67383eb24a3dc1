"""Access git's object store through plumbing commands, without touching the user's checkout, index or branches."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.errors import HintedError
from avactl.spec.repository.git import GitAccess, GitCommandError, GitError, git_work_tree, locate_repository, run_git
from avactl.spec.repository.git_tree import read_blobs


class PublishError(HintedError):
    """Nothing was published."""


class FailedError(PublishError):
    """A git command failed; `said` is its standard error."""

    def __init__(self, command: str, said: str) -> None:
        self.said = said
        lines = [line for line in self.said.splitlines() if not line.startswith("hint:")]
        first = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
        super().__init__(first.removeprefix("fatal: ").removeprefix("error: ") or f"git {command} failed")


class StoreEntry(NamedTuple):
    """A file of a tree."""

    mode: str
    oid: str


FILE = "100644"


class PublishStore:
    """The repository of a directory."""

    def __init__(self, directory: Path) -> None:
        """Raises PublishError if there is no repository."""
        self.directory = directory
        try:
            self.prefix, self.pathspec = locate_repository(directory).prefix, locate_repository(directory).pathspec
        except GitError as error:
            raise PublishError(str(error), "only commits are published: `git init`, then commit") from None
        self._hash = self.run("rev-parse", "--show-object-format").strip()

    def run(self, *arguments: str, **options: Any) -> str:
        """Return the standard output of a git command; options are those of `git`. Raises FailedError."""
        try:
            out = run_git(self.directory, *arguments, **options)
        except GitCommandError as error:
            raise FailedError(error.command, error.said) from None
        except GitError as error:
            raise PublishError(str(error), error.hint) from None
        return out.decode("utf-8", "surrogateescape")

    def succeeds(self, *arguments: str, **options: Any) -> bool:
        """Return whether a command exits with 0."""
        try:
            self.run(*arguments, **options)
        except FailedError:
            return False
        return True

    def resolve(self, name: str) -> str | None:
        """Return the commit of a full reference or an object name; None if there is none."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
        except FailedError:
            return None

    @property
    def shallow(self) -> bool:
        """Return whether the clone is shallow."""
        return self.run("rev-parse", "--is-shallow-repository").strip() == "true"

    def files(self, commit: str) -> dict[str, StoreEntry]:
        """Return all files of a commit by path."""
        found: dict[str, StoreEntry] = {}
        for line in self.run("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            about, _, path = line.partition("\t")
            if path:
                mode, _, oid = about.split()
                found[path] = StoreEntry(mode, oid)
        return found

    def contents(self, oids: Iterable[str]) -> dict[str, str]:
        """Read the texts of blobs with one process."""
        try:
            return {oid: data.decode("utf-8", "replace") for oid, data in read_blobs(self.directory, oids).items()}
        except GitError as error:
            raise PublishError(str(error), error.hint) from None

    def status(self) -> str:
        """Return uncommitted changes below the directory, as `git status --porcelain -z`."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all")
        try:
            out = git_work_tree(self.directory, "status", *options, "--", self.pathspec)
        except GitError as error:
            raise PublishError(str(error), error.hint) from None
        return out.decode("utf-8", "surrogateescape")

    def oid(self, data: bytes) -> str:
        """Return the object name of a blob with this content."""
        return hashlib.new(self._hash, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def write_blobs(self, blobs: Iterable[bytes]) -> None:
        """Write blobs with one process."""
        parts: list[bytes] = []
        for data in blobs:
            parts += [b"blob\ndata %d\n" % len(data), data, b"\n"]
        if parts:
            self.run("fast-import", "--quiet", "--done", data=b"".join([*parts, b"done\n"]), access=GitAccess.WRITE)

    def write_tree(self, files: Mapping[str, StoreEntry]) -> str:
        """Write the tree with exactly these files."""
        lines = (f"{entry.mode} {entry.oid}\t{path}\0" for path, entry in files.items())
        text = "".join(lines).encode("utf-8", "surrogateescape")
        with tempfile.TemporaryDirectory(prefix="avactl-") as directory:
            index = {"GIT_INDEX_FILE": f"{directory}/index"}
            self.run("update-index", "-z", "--index-info", data=text, access=GitAccess.WRITE, environment=index)
            return self.run("write-tree", access=GitAccess.WRITE, environment=index).strip()

    def write_copy(self, tree: str, parent: str | None, message: str, like: str) -> str:
        """Write a commit with the author and dates of another one, so that two publishers create identical commits.

        The committer is git's configured identity, or avactl if there is none.
        """
        about = self.run("log", "-1", "--format=%an%x00%ae%x00%ad%x00%cd", "--date=raw", like)
        name, *others = about.rstrip("\n").split("\0")
        names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")
        environment = dict(zip(names, (name or "unknown", *others), strict=True))
        only = {"user.useConfigOnly": "true"}
        if not self.succeeds("var", "GIT_COMMITTER_IDENT", access=GitAccess.WRITE, settings=only):
            environment |= {"GIT_COMMITTER_NAME": "avactl", "GIT_COMMITTER_EMAIL": "avactl@localhost"}
        return self.write_commit(tree, parent, message, environment)

    def write_commit(
        self, tree: str, parent: str | None, message: str, environment: Mapping[str, str] | None = None
    ) -> str:
        """Write a commit with git's configured identity, or that of the environment."""
        sign = ["-S"] if self._signs() else []
        parents = ["-p", parent] if parent else []
        arguments = ("commit-tree", *sign, *parents, "-F", "-", tree)
        text = message.encode("utf-8", "surrogateescape")
        return self.run(*arguments, data=text, access=GitAccess.WRITE, environment=environment or {}).strip()

    def _signs(self) -> bool:
        """Return whether git is configured to sign commits."""
        try:
            return self.run("config", "--type=bool", "--get", "commit.gpgSign").strip() == "true"
        except FailedError:
            return False
