"""Files of a revision, read from git's object store without a checkout."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from avactl.diagnostics.suggest import closest, one_of
from avactl.source.git import GitCommandError, GitError, UnknownRevisionError, git, locate
from avactl.source.tree import NOWHERE, RENDERED, SKIPPED, SPEC_SUFFIXES, chosen_environment, hidden


def _shallow(directory: str | Path) -> bool:
    return git(directory, "rev-parse", "--is-shallow-repository").strip() == b"true"


_UNSHALLOW = "the clone is shallow: `git fetch --unshallow` (in GitHub Actions `fetch-depth: 0`) brings the history"


def find_commit(directory: str | Path, revision: str) -> str:
    """Resolve a revision to a full commit hash. Raises GitError, with a suggestion as the hint."""
    git(directory, "rev-parse", "--git-dir")  # reports problems other than the revision
    try:
        found = git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitCommandError:
        raise _unknown(directory, revision) from None
    return found.decode().strip()


def _unknown(directory: str | Path, revision: str) -> GitError:
    """Return the error for an unknown revision, with a suggestion."""
    listed = git(directory, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    names = listed.decode(errors="replace").split()
    if not names and not _has_commit(directory):
        return GitError("the repository has no commit yet", "create a commit to compare with")
    if _shallow(directory):
        return UnknownRevisionError(revision, f"this clone has no revision `{revision}`", _UNSHALLOW)
    remote = [name for name in names if name.endswith(f"/{revision}")]
    near = remote[0] if remote else closest(revision, names)
    hint = f"did you mean `{near}`?" if near else f"branches and tags: {one_of(names, 6)}"
    return UnknownRevisionError(revision, f"unknown revision `{revision}`", hint)


def _has_commit(directory: str | Path) -> bool:
    try:
        git(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitCommandError:
        return False
    return True


def merge_base(directory: str | Path, one: str, other: str) -> str:
    """Return the full hash of the merge base of two revisions. Raises GitError."""
    commits = [find_commit(directory, revision) for revision in (one, other)]
    try:
        return git(directory, "merge-base", *commits).decode().split()[0]
    except GitCommandError:
        hint = _UNSHALLOW if _shallow(directory) else "omit `--merge-base` to compare the two directly"
        raise GitError(f"`{one}` and `{other}` have no common ancestor", hint) from None


_TOGETHER = (".yaml", ".yml", ".py", ".json", ".jsonl")
_MAX_TOGETHER = 4 * 1024 * 1024
"""Largest file that is read in a batch, in bytes."""
_MAX_CONTENT = 64 * 1024 * 1024
"""Maximum cached content, in bytes: a small commit can unpack to far more."""
_MAX_TARGET = 4096
"""Longest target of a symbolic link, in bytes: PATH_MAX of Linux."""
_MAX_STEPS = 1000
"""Maximum number of path components followed for a symbolic link; Linux allows 40 links."""


class GitTree:
    """Files of a directory at a revision, read from git's object store.

    Matches `DirTree` on a checkout: hidden files and submodules are omitted, symbolic links are followed within the
    directory. A directory missing in the revision is an empty tree.
    """

    def __init__(self, directory: str | Path, revision: str, *, environment: str | None = None) -> None:
        """`directory` may be a part of a work tree, and need not exist. Raises GitError.

        `environment`: its name, "" for none; None: the one that the user chose.
        """
        self._directory = Path(directory)
        self.environment = chosen_environment() if environment is None else environment
        self.commit = find_commit(directory, revision)
        """Full hash of the commit."""
        prefix = locate(directory).prefix
        self._blobs: dict[str, tuple[str, int]] = {}
        self._links: dict[str, str] = {}
        self._content: dict[str, bytes] | None = None
        arguments = ("ls-tree", "-r", "-z", "-l", "--full-tree", self.commit, *(["--", prefix] if prefix else []))
        links: dict[str, str] = {}
        listed: set[str] = set()
        for line in git(self._directory, *arguments).decode("utf-8", "surrogateescape").split("\0"):
            meta, _, path = line.partition("\t")
            if not path.startswith(prefix) or not path:
                continue
            mode, _, blob, size = meta.split()
            if path in listed or not _is_path(path):
                raise GitError(f"{self.commit[:10]} has a malformed tree: `{path}`", "`git fsck` lists the errors")
            listed.add(path)
            if size == "BAD":
                raise _missing(blob)
            path = path[len(prefix) :]
            if mode == "120000":
                links[path] = blob if int(size) <= _MAX_TARGET else ""
            elif mode.startswith("100"):
                self._blobs[path] = (blob, int(size))
        if links:
            targets = read_blobs(self._directory, (blob for blob in links.values() if blob))
            targets[""] = b"/"  # an overlong target is a broken link
            self._links = {path: targets[blob].decode("utf-8", "surrogateescape") for path, blob in links.items()}
        self._ordered = sorted(self._blobs)
        rendered = {path.rpartition("/")[0] for path in self._blobs if path.rpartition("/")[2] == RENDERED}
        seen = [
            path
            for path in (*self._blobs, *self._links)
            if not any(part.startswith(".") or part in SKIPPED for part in path.split("/"))
            and not (rendered and _is_below(path, rendered))
        ]
        self._seen = sorted(path for path in seen if self._resolve(path) is not None)
        nowhere = (path for path in self._links.keys() & seen if self._leads_nowhere(path))
        self.skipped: dict[str, str] = dict.fromkeys(sorted(nowhere), NOWHERE)

    def paths(self) -> list[str]:
        """Return the sorted paths of all files, relative to the directory."""
        return list(self._seen)

    def size(self, path: str) -> int:
        return self._find(path)[1]

    def read(self, path: str) -> bytes:
        """Return a file's content. The first call reads all small spec files: one process per file would be slow."""
        blob, size = self._find(path)
        if self._content is None:
            self._content = read_blobs(self._directory, self._together())
        if blob in self._content:
            return self._content[blob]
        return git(self._directory, "cat-file", "blob", blob, limit=size)

    def _together(self) -> Iterator[str]:
        """Yield the blobs of small files, up to the cache limit."""
        room = _MAX_CONTENT
        for path, (blob, size) in self._blobs.items():
            if size <= min(room, _MAX_TOGETHER) and path.endswith(_TOGETHER):
                room -= size
                yield blob

    def _find(self, path: str) -> tuple[str, int]:
        resolved = self._resolve(path)
        if resolved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._blobs[resolved]

    def _leads_nowhere(self, path: str) -> bool:
        """Return whether a symbolic link with the name of a spec is broken or leads outside of the tree."""
        if not path.endswith(SPEC_SUFFIXES) or self._resolve(path) is not None:
            return False
        place = self._follow(path)
        if not place:
            return True
        after = bisect_left(self._ordered, f"{place}/")
        return after == len(self._ordered) or not self._ordered[after].startswith(f"{place}/")

    def _resolve(self, path: str) -> str | None:
        """Return the file that a path resolves to, through symbolic links; None if it is outside of the tree."""
        if path in self._blobs:
            return path
        place = self._follow(path)
        return place if place in self._blobs and not hidden(place.split("/")) else None

    def _follow(self, path: str) -> str | None:
        """Resolve a path through symbolic links; None if it is outside of the tree."""
        walked: list[str] = []
        ahead = path.split("/")[::-1]
        hops = steps = 0
        while ahead:
            part = ahead.pop()
            steps += 1
            if steps > _MAX_STEPS:
                return None
            if part in ("", "."):
                continue
            if part == "..":
                if not walked:
                    return None
                walked.pop()
                continue
            walked.append(part)
            target = self._links.get("/".join(walked))
            if target is not None:
                hops += 1
                if hops > 40 or target.startswith("/"):  # 40: as Linux
                    return None
                walked.pop()
                ahead += target.split("/")[::-1]
        return "/".join(walked)


def read_blobs(directory: str | Path, blobs: Iterable[str]) -> dict[str, bytes]:
    """Read many blobs with one process. Raises GitError."""
    wanted = "".join(f"{blob}\n" for blob in sorted(set(blobs)))
    out = git(directory, "cat-file", "--batch", data=wanted.encode()) if wanted else b""
    content: dict[str, bytes] = {}
    position = 0
    while position < len(out):
        end = out.index(b"\n", position)
        blob, *about = out[position:end].decode().split()
        if about == ["missing"]:
            raise _missing(blob)
        content[blob] = out[end + 1 : end + 1 + int(about[1])]
        position = end + 1 + int(about[1]) + 1
    return content


def _missing(blob: str) -> GitError:
    hint = "`git fetch --refetch --no-filter` completes a partial clone"
    return GitError(f"git's object store lacks {blob}", hint)


def _is_below(path: str, directories: set[str]) -> bool:
    """Return whether a path is below one of the directories; "" is the top."""
    return "" in directories or any(char == "/" and path[:cut] in directories for cut, char in enumerate(path))


def _is_path(path: str) -> bool:
    """Return whether a path of a tree can be checked out: git itself refuses trees that lead out of it."""
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/"))
