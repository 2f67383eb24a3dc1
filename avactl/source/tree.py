"""A repository's files, from a directory, from git, or from memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from avactl.diagnostics.suggest import closest, one_of

_SKIPPED = {"node_modules", "__pycache__"}
RENDERED = ".avactl-render"
"""Stands in directories that `avactl render` writes: what is in them is output, never specs."""

SPEC_SUFFIXES = (".yaml", ".yml", ".py")
"""How names of spec files end."""

NOWHERE = "is a symbolic link that leads to no file of the repository"

MAX_INPUT = 64 * 1024 * 1024
"""Largest file that a spec may name, bytes; about half a million lines of a dataset's manifest."""

Stamp = tuple[int, int, int, int]
"""How a file looks from outside: inode, bytes, and the times of its last change of content and of anything, ns."""


def hidden(parts: Iterable[str]) -> bool:
    """Whether a path has a part that begins with a dot."""
    return any(part.startswith(".") for part in parts)


class Sized(Protocol):
    """What reads files; see `avactl.compiler.state.Tree`."""

    def size(self, path: str) -> int: ...
    def read(self, path: str) -> bytes: ...


def read_input(tree: Sized, path: str) -> bytes | None:
    """Content of a file that a spec names; None where the repository has none that a spec may name.

    That leaves out hidden files, those outside of the repository, pipes and devices, and more than `MAX_INPUT` bytes.
    """
    try:
        if path.startswith("/") or hidden(path.split("/")) or tree.size(path) > MAX_INPUT:
            return None
        return tree.read(path)
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None


class DirTree:
    """Files below a directory; hidden ones, rendered ones and symbolic links that leave it are not seen."""

    def __init__(self, root: str | Path, only: Iterable[str] | None = None) -> None:
        self.root = Path(root)
        self.skipped: dict[str, str] = {}
        self._seen: set[str] = set()
        """Files that a walk has found, none of which leaves the directory."""
        self._only = list(only) if only is not None else None

    def paths(self) -> list[str]:
        """Paths of all files from the root, sorted; with `only`, of those below one of the given paths."""
        return sorted(path for path, _ in self._files())

    def stamps(self) -> dict[str, Stamp]:
        """The stamps of all files that `paths` names, in its order. A file that is gone by then is left out."""
        found: dict[str, Stamp] = {}
        for path, entry in sorted(self._files(), key=lambda file: file[0]):
            stamp = self.stamp(path, entry)
            if stamp is not None:
                found[path] = stamp
        return found

    def stamp(self, path: str, entry: os.DirEntry[str] | None = None) -> Stamp | None:
        """How a file looks from outside; None if it is not there."""
        try:
            about = entry.stat() if entry is not None else os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    @property
    def key(self) -> str:
        """Names this tree among others of the machine."""
        return "\n".join((str(self.root.resolve()), *(self._only or ())))

    def _files(self) -> Iterable[tuple[str, os.DirEntry[str] | None]]:
        self.skipped = {}
        if self._only is None:
            return self._walk(str(self.root), "")
        found: dict[str, os.DirEntry[str] | None] = {}
        for path in self._only:
            full = self.root / path
            if full.is_dir():
                found.update(self._walk(str(full), "" if path in ("", ".") else path.rstrip("/") + "/"))
            else:
                found.setdefault(path, None)
        return found.items()

    def _walk(self, directory: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        ahead = [(directory, prefix)]  # not by recursion: directories may be nested more deeply than Python's calls
        while ahead:
            directory, prefix = ahead.pop()
            try:
                with os.scandir(directory) as listing:
                    entries = list(listing)
            except OSError as error:
                self.skipped[prefix.rstrip("/") or "."] = f"cannot be read: {error.strerror or error}"
                continue
            if any(entry.name == RENDERED for entry in entries):
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    ahead.append((entry.path, f"{prefix}{entry.name}/"))
                elif _is_file(entry) and (not entry.is_symlink() or self._inside(entry.path)):
                    self._seen.add(prefix + entry.name)
                    yield prefix + entry.name, entry
                elif entry.is_symlink() and entry.name.endswith(SPEC_SUFFIXES) and not _is_directory(entry):
                    self.skipped[prefix + entry.name] = NOWHERE

    def _inside(self, path: str) -> bool:
        """Whether a path leads, through symbolic links, to a place in the directory that is not hidden."""
        try:
            place = Path(path).resolve().relative_to(self.root.resolve())
        except (OSError, RuntimeError, ValueError):
            return False
        return not hidden(place.parts)

    def size(self, path: str) -> int:
        """Bytes of a file. Raises OSError, also for a pipe or a device: reading one may never end."""
        about = os.stat(f"{self.root}/{path}")  # noqa: PTH116 - as `read`
        _want_regular(about, path)
        return about.st_size

    def read(self, path: str) -> bytes:
        """Content of a file. Raises OSError, as `size`, and for what symbolic links lead out of the directory."""
        if path not in self._seen and not self._inside(f"{self.root}/{path}"):
            raise OSError(errno.EACCES, "it is hidden, or a symbolic link leads out of the repository", path)
        # Ten thousand times: Path costs.
        with open(f"{self.root}/{path}", "rb", buffering=0, opener=_at_once) as file:
            _want_regular(os.fstat(file.fileno()), path)
            return file.read()


def _at_once(path: str, flags: int) -> int:
    """Opens a file; a pipe without waiting for somebody who writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _want_regular(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a symbolic link to itself
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


class MemoryTree:
    """Files in memory, for the library and for tests."""

    def __init__(self, files: Mapping[str, bytes | str]) -> None:
        self.skipped: dict[str, str] = {}
        self._files = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}

    def paths(self) -> list[str]:
        return sorted(self._files)

    def size(self, path: str) -> int:
        return len(self.read(path))

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class GitError(Exception):
    """git said no. The text is one line; `hint` is the remedy, or empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
"""Set by git in hooks. The repository is the one that the directory is in, so they would only mislead."""


def git(directory: str | Path, *args: str, data: bytes | None = None) -> bytes:
    """Standard output of a git command. Raises GitError."""
    import subprocess  # start-up counts, and most commands need no git

    env = {name: value for name, value in os.environ.items() if name not in HOOK_VARIABLES}
    # Texts are matched below, so they must be English; and nothing here may write into the repository.
    env |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(directory), *args]
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False, env=env)  # noqa: S603
    except FileNotFoundError:
        raise GitError("git is not installed", "install git: revisions are read from its store") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if "not a git repository" in said:
            raise GitError(
                f"{directory} is not in a git repository", "a diff compares revisions: `git init`, then commit"
            )
        if "dubious ownership" in said:
            where = "git config --global --add safe.directory DIR"
            raise GitError(f"git does not trust {directory}: another user owns it", f"`{where}` tells it that you do")
        raise GitError(said.splitlines()[0].removeprefix("fatal: ") if said else f"git {args[0]} failed")
    return done.stdout


def _shallow(directory: str | Path) -> bool:
    return git(directory, "rev-parse", "--is-shallow-repository").strip() == b"true"


_UNSHALLOW = "the clone is shallow: `git fetch --unshallow` (in GitHub Actions `fetch-depth: 0`) brings the history"


def find_commit(directory: str | Path, revision: str) -> str:
    """The full name of the commit that a revision means. Raises GitError, with what was likely meant as the hint."""
    git(directory, "rev-parse", "--git-dir")  # whatever is wrong beside the revision speaks here
    try:
        found = git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitError:
        raise _unknown(directory, revision) from None
    return found.decode().strip()


def _unknown(directory: str | Path, revision: str) -> GitError:
    """Why a revision means nothing here, and what may have been meant."""
    listed = git(directory, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    names = listed.decode(errors="replace").split()
    if not names and not _has_commit(directory):
        return GitError("the repository has no commit yet", "commit once: there is nothing to compare with")
    if _shallow(directory):
        return GitError(f"there is no revision `{revision}` in this clone", _UNSHALLOW)
    remote = [name for name in names if name.endswith(f"/{revision}")]
    near = remote[0] if remote else closest(revision, names)
    hint = f"did you mean `{near}`?" if near else f"branches and tags: {one_of(names, 6)}"
    return GitError(f"there is no revision `{revision}`", hint)


def _has_commit(directory: str | Path) -> bool:
    try:
        git(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        return False
    return True


def merge_base(directory: str | Path, one: str, other: str) -> str:
    """The newest commit that two revisions have in common, by its full name. Raises GitError."""
    commits = [find_commit(directory, revision) for revision in (one, other)]
    try:
        return git(directory, "merge-base", *commits).decode().split()[0]
    except GitError:
        hint = _UNSHALLOW if _shallow(directory) else "leave `--merge-base` out to compare the two as they are"
        raise GitError(f"`{one}` and `{other}` have no commit in common", hint) from None


def _existing(directory: Path) -> tuple[Path, str]:
    """The nearest directory above that is there now, and the rest of the path with a `/` behind it.

    A path may be in a revision and not in the work tree.
    """
    rest: list[str] = []
    directory = directory.absolute()
    while not directory.is_dir() and directory != directory.parent:
        rest.insert(0, directory.name)
        directory = directory.parent
    return directory, "".join(f"{part}/" for part in rest)


_TOGETHER = (".yaml", ".yml", ".py", ".json", ".jsonl")


class GitTree:
    """Files of a directory at a revision, read from git's store; no checkout is touched.

    It sees what `DirTree` would see in a checkout: hidden files and submodules are left out, symbolic links are
    followed as long as they stay inside. A directory that the revision does not have is an empty tree.
    """

    def __init__(self, directory: str | Path, revision: str) -> None:
        """`directory` may be a part of a work tree: then only that part is seen. Raises GitError."""
        self._directory, rest = _existing(Path(directory))
        self.commit = find_commit(self._directory, revision)
        """Full name of the commit."""
        prefix = git(self._directory, "rev-parse", "--show-prefix").decode("utf-8", "surrogateescape")
        prefix = prefix.removesuffix("\n") + rest
        self._blobs: dict[str, tuple[str, int]] = {}
        self._links: dict[str, str] = {}
        self._content: dict[str, bytes] | None = None
        arguments = ("ls-tree", "-r", "-z", "-l", "--full-tree", self.commit, *(["--", prefix] if prefix else []))
        links: dict[str, str] = {}
        for line in git(self._directory, *arguments).decode("utf-8", "surrogateescape").split("\0"):
            meta, _, path = line.partition("\t")
            if not path.startswith(prefix) or not path:
                continue
            mode, _, blob, size = meta.split()
            if mode == "120000":
                links[path[len(prefix) :]] = blob
            elif mode.startswith("100"):
                self._blobs[path[len(prefix) :]] = (blob, int(size))
        if links:
            targets = self._contents(links.values())
            self._links = {path: targets[blob].decode("utf-8", "surrogateescape") for path, blob in links.items()}
        rendered = tuple(path.removesuffix(RENDERED) for path in self._blobs if f"/{path}".endswith(f"/{RENDERED}"))
        seen = [
            path
            for path in (*self._blobs, *self._links)
            if not any(part.startswith(".") or part in _SKIPPED for part in path.split("/"))
            and not path.startswith(rendered)
        ]
        self._seen = sorted(path for path in seen if self._resolve(path) is not None)
        nowhere = (path for path in self._links.keys() & seen if self._leads_nowhere(path))
        self.skipped: dict[str, str] = dict.fromkeys(sorted(nowhere), NOWHERE)

    def paths(self) -> list[str]:
        """Paths of all files from the directory, sorted."""
        return list(self._seen)

    def size(self, path: str) -> int:
        return self._find(path)[1]

    def read(self, path: str) -> bytes:
        """Content of a file. The first call brings all small files of specs: a process a file would be slow."""
        blob = self._find(path)[0]
        if self._content is None:
            limit = 4 * 1024 * 1024
            small = (b for path, (b, size) in self._blobs.items() if size <= limit and path.endswith(_TOGETHER))
            self._content = self._contents(small)
        if blob not in self._content:
            self._content[blob] = git(self._directory, "cat-file", "blob", blob)
        return self._content[blob]

    def _find(self, path: str) -> tuple[str, int]:
        resolved = self._resolve(path)
        if resolved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._blobs[resolved]

    def _leads_nowhere(self, path: str) -> bool:
        """Whether a symbolic link is named as a spec, and leads neither to a file nor to a directory of the tree."""
        if not path.endswith(SPEC_SUFFIXES) or self._resolve(path) is not None:
            return False
        place = self._follow(path)
        return not place or not any(blob.startswith(f"{place}/") for blob in self._blobs)

    def _resolve(self, path: str) -> str | None:
        """The file that a path leads to, through symbolic links; None if there is none inside of the tree."""
        if path in self._blobs:
            return path
        place = self._follow(path)
        return place if place in self._blobs and not hidden(place.split("/")) else None

    def _follow(self, path: str) -> str | None:
        """Where a path leads to, through symbolic links; None if that is outside of the tree."""
        walked: list[str] = []
        ahead = path.split("/")[::-1]
        hops = 0
        while ahead:
            part = ahead.pop()
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

    def _contents(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Contents of many blobs by one process."""
        wanted = "".join(f"{blob}\n" for blob in sorted(set(blobs)))
        out = git(self._directory, "cat-file", "--batch", data=wanted.encode()) if wanted else b""
        content: dict[str, bytes] = {}
        position = 0
        while position < len(out):
            end = out.index(b"\n", position)
            blob, *about = out[position:end].decode().split()
            if about == ["missing"]:
                raise GitError(f"git has not the content of {blob}", "`git fetch --refetch` completes a partial clone")
            content[blob] = out[end + 1 : end + 1 + int(about[1])]
            position = end + 1 + int(about[1]) + 1
        return content
