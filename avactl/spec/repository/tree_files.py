"""Files of a tree: one rule for a directory and for a git revision, so that a commit and its checkout are the same.

Links are followed by this rule, too, and not by the operating system: within the tree, by relative targets only.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

SKIPPED = {"node_modules", "__pycache__"}
RENDERED = ".avactl-render"
"""Marker file in directories written by `avactl render`: their contents are output, not specs."""

SPEC_SUFFIXES = (".yaml", ".yml", ".py")
"""File name extensions of specs."""

NOWHERE = "is a symbolic link to no file of the repository"
ODD_NAME = "its path has `<`, `>` or a control character"
OWN_REPOSITORY = "is a git repository of its own, such as a submodule: its files are not read"

_MAX_LINKS = 40
"""Maximum number of links followed for a path, as in Linux."""
_MAX_STEPS = 1000
"""Maximum number of path components followed for a path."""
MAX_TARGET = 4096
"""Longest target of a symbolic link, in bytes: PATH_MAX of Linux."""

odd_name = re.compile(r"[<>\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]").search
"""Return a match if a path has a character that no path of a tree may have.

Places that are no files (`<avactl>/…`, `<stdin>`) have such names, lines of output would be split by a control
character, and one that changes the direction of text would hide a part of the path.
"""


class FileKind(Enum):
    """Type of a directory's entry."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    REPOSITORY = "repository"
    """A git repository in the tree, such as a submodule."""
    OTHER = "other"
    """A pipe, a socket or a device."""


class Entries(Protocol):
    """A file system, as far as a tree reads it. Paths are from its top; that of the top is empty."""

    @property
    def shows_hidden(self) -> bool:
        """True if hidden files belong to the tree, as they do for settings of a forge."""
        ...

    def children(self, directory: str) -> Iterable[tuple[str, FileKind]]:
        """Return the names in a directory. Raises OSError."""
        ...

    def kind(self, path: str) -> FileKind | None:
        """Return what a path is, without following links at its end; None if it does not exist."""
        ...

    def target(self, path: str) -> str:
        """Return the target of a link; "" if it is too long. Raises OSError."""
        ...


class Walked(NamedTuple):
    """The files of a tree."""

    files: dict[str, str]
    """By path, the path that is read: another one for links."""
    skipped: dict[str, str]
    """Paths that were left out though they may hold specs, with the reason."""


def walk(entries: Entries, start: str = "") -> Walked:
    """Find the files of a tree below a directory, which is empty or ends with `/`."""
    files: dict[str, str] = {}
    skipped: dict[str, str] = {}
    ahead = [start]  # iterative: directories may be nested deeper than Python's recursion limit
    while ahead:
        prefix = ahead.pop()
        try:
            listed = list(entries.children(prefix.rstrip("/")))
        except OSError as error:
            skipped[prefix.rstrip("/") or "."] = f"cannot be read: {error.strerror or error}"
            continue
        if prefix != start and any(name == ".git" for name, _ in listed):
            skipped[prefix.rstrip("/")] = OWN_REPOSITORY
            continue
        if (RENDERED, FileKind.FILE) in listed:
            continue
        is_odd = odd_name(prefix)
        for name, kind in listed:
            if (name.startswith(".") and not entries.shows_hidden) or name == ".git" or name in SKIPPED:
                continue
            path = prefix + name
            if kind is FileKind.FILE and not is_odd and not odd_name(name):
                files[path] = path
                continue
            if kind is FileKind.DIRECTORY:
                ahead.append(f"{path}/")
                continue
            if kind is FileKind.REPOSITORY:
                skipped[path] = OWN_REPOSITORY
                continue
            found = follow_links(entries, path) if kind is FileKind.LINK else (path, kind)
            if is_odd or odd_name(name):
                why = ODD_NAME
            elif found is not None and found[1] is FileKind.FILE and _is_visible(entries, found[0]):
                files[path] = found[0]
                continue
            elif kind is FileKind.LINK and (found is None or found[1] is not FileKind.DIRECTORY):
                why = NOWHERE
            else:
                continue
            if path.endswith((*SPEC_SUFFIXES, ".json")):
                skipped[path] = why
    return Walked(files, dict(sorted(skipped.items())))


def find_file(entries: Entries, path: str) -> str:
    """Return the path of the file that a path leads to. Raises OSError if it is no visible file of the tree."""
    found = follow_links(entries, path)
    if found is None and not _leads_elsewhere(entries, path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if found is None or not _is_visible(entries, found[0]):
        raise OSError(errno.EACCES, "it is hidden, or a symbolic link leads out of the repository", path)
    if found[1] is not FileKind.FILE:
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return found[0]


def _leads_elsewhere(entries: Entries, path: str) -> bool:
    """Return True if a path leads up to a link or a file, or out of the tree; False if a part of it is missing."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for end in range(1, len(parts) + 1):
        kind = FileKind.LINK if parts[end - 1] == ".." else entries.kind("/".join(parts[:end]))
        if kind is not FileKind.DIRECTORY:
            return kind is not None
    return True


def is_hidden(parts: Iterable[str]) -> bool:
    """Return whether a path has a component that begins with a dot."""
    return any(part.startswith(".") for part in parts)


def _is_visible(entries: Entries, path: str) -> bool:
    parts = path.split("/")
    return not odd_name(path) and (".git" not in parts if entries.shows_hidden else not is_hidden(parts))


def follow_links(entries: Entries, path: str) -> tuple[str, FileKind] | None:
    """Resolve a path through links to the place in the tree where it ends; None if there is none."""
    walked: list[str] = []
    ahead = path.split("/")[::-1]
    kind = FileKind.DIRECTORY
    links = steps = 0
    while ahead:
        part = ahead.pop()
        steps += 1
        if steps > _MAX_STEPS or kind is not FileKind.DIRECTORY:
            return None
        if part == "..":
            if not walked:
                return None
            walked.pop()
        elif part not in ("", "."):
            walked.append(part)
            found = entries.kind("/".join(walked))
            if found is None:
                return None
            kind = found
            if kind is FileKind.LINK:
                target = entries.target("/".join(walked))
                links += 1
                if not target or target.startswith("/") or links > _MAX_LINKS:
                    return None
                walked.pop()
                kind = FileKind.DIRECTORY
                ahead += target.split("/")[::-1]
    return "/".join(walked), kind
