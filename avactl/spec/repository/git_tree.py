"""Files of a revision, read from git's object store without a checkout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from avactl.diagnostics.suggest import closest_word, one_of
from avactl.forges import join_hints
from avactl.spec.repository.git import GitCommandError, GitError, UnknownRevisionError, locate_repository, run_git
from avactl.spec.repository.tree import chosen_environment
from avactl.spec.repository.tree_files import MAX_TARGET, FileKind, find_file, walk


def _is_shallow(directory: str | Path) -> bool:
    return run_git(directory, "rev-parse", "--is-shallow-repository").strip() == b"true"


def _unshallow_hint() -> str:
    clone = join_hints(lambda forge: forge.full_clone)
    return f"the clone is shallow: `git fetch --unshallow` (in pipelines {clone}) brings the history"


def find_commit(directory: str | Path, revision: str) -> str:
    """Resolve a revision to a full commit hash. Raises GitError, with a suggestion as the hint."""
    run_git(directory, "rev-parse", "--git-dir")  # reports problems other than the revision
    try:
        found = run_git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitCommandError:
        raise _unknown_revision(directory, revision) from None
    return found.decode().strip()


def _unknown_revision(directory: str | Path, revision: str) -> GitError:
    """Return the error for an unknown revision, with a suggestion."""
    listed = run_git(directory, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    names = listed.decode(errors="replace").split()
    if not names and not _has_commit(directory):
        return GitError("the repository has no commit yet", "create a commit to compare with")
    if _is_shallow(directory):
        return UnknownRevisionError(revision, f"this clone has no revision `{revision}`", _unshallow_hint())
    remote = [name for name in names if name.endswith(f"/{revision}")]
    near = remote[0] if remote else closest_word(revision, names)
    hint = f"did you mean `{near}`?" if near else f"branches and tags: {one_of(names, 6)}"
    return UnknownRevisionError(revision, f"unknown revision `{revision}`", hint)


def _has_commit(directory: str | Path) -> bool:
    try:
        run_git(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitCommandError:
        return False
    return True


def commit_parents(directory: str | Path, revision: str) -> list[str]:
    """Return the parents of a commit, also of one whose parents a shallow clone does not have. Raises GitError."""
    header = run_git(directory, "cat-file", "commit", find_commit(directory, revision)).partition(b"\n\n")[0]
    return [line[7:].decode() for line in header.split(b"\n") if line.startswith(b"parent ")]


def merge_base(directory: str | Path, one: str, other: str) -> str:
    """Return the full hash of the merge base of two revisions. Raises GitError."""
    commits = [find_commit(directory, revision) for revision in (one, other)]
    try:
        return run_git(directory, "merge-base", *commits).decode().split()[0]
    except GitCommandError:
        hint = _unshallow_hint() if _is_shallow(directory) else "omit `--merge-base` to compare the two directly"
        raise GitError(f"`{one}` and `{other}` have no common ancestor", hint) from None


_PREFETCHED_SUFFIXES = (".yaml", ".yml", ".py", ".json", ".jsonl")
_MAX_TOGETHER = 4 * 1024 * 1024
"""Largest file that is read in a batch, in bytes."""
_MAX_CONTENT = 64 * 1024 * 1024
"""Maximum cached content, in bytes: a small commit can unpack to far more."""


class GitTree:
    """Files of a directory at a revision, read from git's object store.

    The same files as `DirTree` on a checkout, by the rule of `tree_files`. A directory that is missing in the revision
    is an empty tree.
    """

    def __init__(
        self, directory: str | Path, revision: str, *, environment: str | None = None, hidden: bool = False
    ) -> None:
        """`directory` may be a part of a work tree, and need not exist. Raises GitError.

        `environment`: its name, "" for none; None: the one that the user chose. `hidden`: with hidden files.
        """
        self._directory = Path(directory)
        self.shows_hidden = hidden
        self.environment = chosen_environment() if environment is None else environment
        self.commit = find_commit(directory, revision)
        """Full hash of the commit."""
        prefix = locate_repository(directory).prefix
        self._blobs: dict[str, tuple[str, int]] = {}
        self._targets: dict[str, str] = {}
        self._children: dict[str, dict[str, FileKind]] = {"": {}}
        self._content: dict[str, bytes] | None = None
        arguments = ("ls-tree", "-r", "-z", "-l", "--full-tree", self.commit, *(["--", prefix] if prefix else []))
        links: dict[str, str] = {}
        for line in run_git(self._directory, *arguments).decode("utf-8", "surrogateescape").split("\0"):
            meta, _, path = line.partition("\t")
            if not path.startswith(prefix) or not path:
                continue
            mode, _, blob, size = meta.split()
            kind = (
                FileKind.LINK if mode == "120000" else FileKind.FILE if mode.startswith("100") else FileKind.REPOSITORY
            )
            if size == "BAD":
                raise _missing_blob(blob)
            if not _is_path(path) or not self._put(path[len(prefix) :], kind):
                raise GitError(f"{self.commit[:10]} has a malformed tree: `{path}`", "`git fsck` lists the errors")
            path = path[len(prefix) :]
            if kind is FileKind.LINK:
                links[path] = blob if int(size) < MAX_TARGET else ""
            elif kind is FileKind.FILE:
                self._blobs[path] = (blob, int(size))
        if links:
            targets = read_blobs(self._directory, (blob for blob in links.values() if blob))
            targets[""] = b""  # an overlong target is a broken link
            self._targets = {path: targets[blob].decode("utf-8", "surrogateescape") for path, blob in links.items()}
        self._found, self.skipped = walk(self)

    def _put(self, path: str, kind: FileKind) -> bool:
        """Add a path and its directories; return False if a tree cannot have it beside the others."""
        parent, _, name = path.rpartition("/")
        if name in self._children.get(parent, ()):
            return False
        self._children.setdefault(parent, {})[name] = kind
        while parent:
            parent, _, name = parent.rpartition("/")
            known = self._children.setdefault(parent, {}).setdefault(name, FileKind.DIRECTORY)
            if known is not FileKind.DIRECTORY:
                return False
        return True

    def children(self, directory: str) -> Iterable[tuple[str, FileKind]]:
        """Return the names in a directory."""
        return self._children[directory].items()

    def kind(self, path: str) -> FileKind | None:
        """Return what a path is, without following a link at its end; None if it does not exist."""
        parent, _, name = path.rpartition("/")
        return self._children.get(parent, {}).get(name)

    def target(self, path: str) -> str:
        """Return the target of a link; "" if it is too long."""
        return self._targets[path]

    def whole(self) -> GitTree:
        """Return all of the repository at this commit, with hidden files. Raises GitError."""
        return GitTree(locate_repository(self._directory).top, self.commit, environment=self.environment, hidden=True)

    @property
    def prefix(self) -> str:
        """Path of the directory in the repository; empty, or ends with `/`."""
        return locate_repository(self._directory).prefix

    def paths(self) -> list[str]:
        """Return the sorted paths of all files, relative to the directory."""
        return sorted(self._found)

    def size(self, path: str) -> int:
        return self._find(path)[1]

    def read(self, path: str) -> bytes:
        """Return a file's content. The first call reads all small spec files: one process per file would be slow."""
        blob, size = self._find(path)
        if self._content is None:
            self._content = read_blobs(self._directory, self._together())
        if blob in self._content:
            return self._content[blob]
        return run_git(self._directory, "cat-file", "blob", blob, limit=size)

    def _together(self) -> Iterator[str]:
        """Yield the blobs of small files, up to the cache limit."""
        room = _MAX_CONTENT
        for path, (blob, size) in self._blobs.items():
            if size <= min(room, _MAX_TOGETHER) and path.endswith(_PREFETCHED_SUFFIXES):
                room -= size
                yield blob

    def _find(self, path: str) -> tuple[str, int]:
        return self._blobs[self._found.get(path) or find_file(self, path)]


def read_blobs(directory: str | Path, blobs: Iterable[str]) -> dict[str, bytes]:
    """Read many blobs with one process. Raises GitError."""
    wanted = "".join(f"{blob}\n" for blob in sorted(set(blobs)))
    out = run_git(directory, "cat-file", "--batch", data=wanted.encode()) if wanted else b""
    content: dict[str, bytes] = {}
    position = 0
    while position < len(out):
        end = out.index(b"\n", position)
        blob, *about = out[position:end].decode().split()
        if about == ["missing"]:
            raise _missing_blob(blob)
        content[blob] = out[end + 1 : end + 1 + int(about[1])]
        position = end + 1 + int(about[1]) + 1
    return content


def _missing_blob(blob: str) -> GitError:
    hint = "`git fetch --refetch --no-filter` completes a partial clone"
    return GitError(f"git's object store lacks {blob}", hint)


def _is_path(path: str) -> bool:
    """Return whether a path of a tree can be checked out: git itself refuses trees that lead out of it."""
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/"))
