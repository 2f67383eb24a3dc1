"""The output directory of `avactl render`, owned by avactl and replaced atomically.

Every directory with rendered files contains a list of them with SHA-256 digests: `.avactl-render`, in the format of
`sha256sum`. It identifies rendered files, and files changed or added by hand. Its name has no extension that
`kubectl apply -R` or a GitOps engine would read. A run replaces the smallest directory that contains all changes;
unchanged files are hard-linked into the new version.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import NoReturn

from avactl.apply.files import atomic_swap
from avactl.base import parallel
from avactl.base.directories import want_no_link
from avactl.base.errors import HintedError
from avactl.spec.repository.tree_files import RENDERED

Stamp = tuple[int, int, int]
"""Stat fingerprint of a file: inode, size in bytes, mtime in ns."""
Seen = dict[str, tuple[str, dict[str, Stamp]]]
"""Directory ("" or with a trailing `/`) → text of its list, stamps of its files by name."""
Texts = Callable[[Collection[str]], Mapping[str, str]]
"""Returns the contents of files by path."""

_LIST_HEADER = "# Written by `avactl render`. Files that are not listed here are not its own. Check: sha256sum -c\n"
_RACY_NS = 20_000_000
"""A file modified less than this many ns before its stat may change again within one clock tick."""
_FILES_PER_SLICE = 500
"""Fewest files to write that justify another process, which costs about 15 ms."""


class OutputError(HintedError):
    """Nothing was written."""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Numbers of files written, unchanged and deleted, and the new stamps."""

    written: int
    kept: int
    deleted: int
    seen: Seen


@dataclass(slots=True)
class _OutputState:
    """The current state of an output directory."""

    seen: Seen = field(default_factory=dict)
    """Rendered files by directory; the list is "" if there is none."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of files whose stamp has changed; the list has the others."""
    changed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def write(
    directory: str, wanted: Mapping[str, str], texts: Texts, *, force: bool = False, seen: Seen | None = None
) -> WrittenFiles:
    """Make the directory contain exactly the wanted files: SHA-256 by path with `/`.

    `texts` returns the contents of files that are missing. `seen` is from the previous run: a file with an unchanged
    stamp is not read. With `force`, files changed by hand are overwritten, and files added by hand stay; without, both
    are refused. Raises OutputError, and then leaves the directory unchanged.
    """
    directory = os.path.abspath(directory)
    parent, name = os.path.split(directory)
    try:
        _check_place(directory, name)
        want_no_link(directory)
        os.makedirs(parent, exist_ok=True)
        with atomic_swap.lock_parent(parent):
            atomic_swap.recover_swap(directory)
            found = _read_state(directory, seen or {})
            _refuse_overwriting(directory, found, force)
            return _update(directory, wanted, texts, found)
    except OSError as error:
        _explain(directory, error)


def _check_place(directory: str, name: str) -> None:
    if not name or os.path.ismount(directory):
        what = "the root directory" if not name else "a mount point"
        raise OutputError(f"{directory} is {what}, which cannot be replaced", "use a directory below it")
    if os.path.islink(directory):
        raise OutputError(f"{directory} is a symbolic link", "use the directory itself")
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise OutputError(f"{directory} is a file", "use a new or empty directory, or one written by `avactl render`")
    here = os.getcwd()
    if here == directory or here.startswith(directory + os.sep):
        message = f"the current directory is in {directory}, which is replaced"
        raise OutputError(message, "run it from another directory")


def _explain(directory: str, error: OSError) -> NoReturn:
    """Raise the operating system's error as one line with a remedy."""
    why = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else directory
    hint = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space: old and new version exist side by side until the new one is complete"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "the directory is replaced as a whole, so its parent must be writable too"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        hint = "a file exists where a directory is needed"
    raise OutputError(f"{directory} was not written: {where}: {why}", hint) from error


# -- current state -------------------------------------------------------------------------------------------------


def _read_state(directory: str, seen: Seen) -> _OutputState:
    """Read the directory's state. Raises OutputError if avactl does not own it."""
    found = _OutputState()
    if os.path.lexists(f"{directory}/{RENDERED}"):
        _scan_directory(directory, "", seen, found)
    elif os.path.isdir(directory) and (names := os.listdir(directory)):
        what = f"`avactl render` did not write it (it has no {RENDERED}): {min(names)}"
        raise OutputError(f"{directory} is not empty, and {what}", "use a new or empty directory")
    return found


def _scan_directory(directory: str, prefix: str, seen: Seen, found: _OutputState) -> None:
    handle = os.open(f"{directory}/{prefix}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(handle) as listing:
            entries = {entry.name: entry for entry in listing}
        text = ""
        if RENDERED in entries and entries[RENDERED].is_file(follow_symlinks=False):
            del entries[RENDERED]
            text = _read(f"{directory}/{prefix}{RENDERED}").decode("utf-8", "replace")
        before, known = seen.get(prefix, ("", {}))
        files: dict[str, Stamp] = {}
        found.seen[prefix] = (text, files)
        for name, stamp in known.items() if before == text else ():  # hot path: most files are unchanged
            entry = entries.get(name)
            if entry is not None:
                about = entry.stat(follow_symlinks=False)
                if stamp == (about.st_ino, about.st_size, about.st_mtime_ns):
                    files[name] = stamp
                    del entries[name]
        as_before = len(files)
        listed = _parse(text) if entries else {}
        for name, entry in entries.items():
            path = prefix + name
            if entry.is_dir(follow_symlinks=False):
                _scan_directory(directory, f"{path}/", seen, found)
            elif name not in listed or not entry.is_file(follow_symlinks=False):
                found.added.append(path)
            else:
                about = entry.stat(follow_symlinks=False)
                files[name] = (about.st_ino, about.st_size, about.st_mtime_ns)
                found.digests[path] = sha256(_read(f"{directory}/{path}")).hexdigest()
                if found.digests[path] not in listed[name]:
                    found.changed.append(path)
        if prefix in seen and before == text and len(files) == as_before == len(known):
            found.seen[prefix] = seen[prefix]  # the same object: lets the cache see that nothing changed
    finally:
        os.close(handle)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parse(text: str) -> dict[str, list[str]]:
    """Parse names and digests of a list. Other lines, such as merge conflict markers, are ignored."""
    listed: dict[str, list[str]] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) == 64 and name:
            listed.setdefault(name, []).append(digest)
    return listed


def _refuse_overwriting(directory: str, found: _OutputState, force: bool) -> None:
    """Refuse to overwrite manual changes."""
    added = {path: f"{directory}/{path}" for path in found.added}
    special = [path for path, at in added.items() if not (os.path.islink(at) or os.path.isfile(at))]
    if special:
        raise OutputError(f"{directory} contains something that is not a file: {join_first(special)}", "move it away")
    if force:
        return
    by_hand = {"changed": found.changed, "added": found.added}
    problems = [f"{what} by hand: {join_first(paths)}" for what, paths in by_hand.items() if paths]
    if problems:
        hint = "change the specs instead, or move the files away; --force overwrites changed files and keeps added ones"
        raise OutputError(f"{directory} has files that would be lost: {'; '.join(problems)}", hint)


def join_first(names: list[str], most: int = 5) -> str:
    """Join the first names, and count the rest."""
    return ", ".join(sorted(names)[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# -- replacement ---------------------------------------------------------------------------------------------------


def _by_directory(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group file names by directory ("" or with a trailing `/`); the top is always included."""
    names: dict[str, list[str]] = {"": []}
    for path in paths:
        cut = path.rfind("/") + 1
        names.setdefault(path[:cut], []).append(path[cut:])
    return names


def directory_lists(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the list of each directory (path of the list → its text), for files by path with their SHA-256."""
    names = _by_directory(wanted)
    return {f"{prefix}{RENDERED}": _list(prefix, here, wanted) for prefix, here in names.items()}


def listed_paths(prefix: str, text: str) -> list[str]:
    """Return the paths of the files in a directory's list."""
    return [prefix + name for name in _parse(text)]


def _list(prefix: str, names: list[str], wanted: Mapping[str, str]) -> str:
    return _LIST_HEADER + "".join(f"{wanted[prefix + name]}  {name}\n" for name in sorted(names))


def _update(directory: str, wanted: Mapping[str, str], texts: Texts, found: _OutputState) -> WrittenFiles:
    names = _by_directory(wanted)
    lists = {prefix: _list(prefix, here, wanted) for prefix, here in names.items()}
    odd = {path[: path.rfind("/") + 1] for path in found.digests}
    touched: set[str] = set()
    """Directories that differ."""
    same: set[str] = set()
    """Files of the directories that differ."""
    deleted = 0
    for prefix in lists.keys() | found.seen.keys():
        text, files = found.seen.get(prefix, ("", {}))
        here = names.get(prefix, [])
        if text == lists.get(prefix, "") and prefix not in odd and len(files) == len(here):
            continue
        listed = _parse(text)
        right = {
            prefix + name
            for name in here
            if name in files and wanted[prefix + name] == (found.digests.get(prefix + name) or listed[name][0])
        }
        if text == lists.get(prefix, "") and len(right) == len(here) == len(files):
            continue
        touched.add(prefix)
        same |= right
        deleted += len(files.keys() - set(here))
    written = sum(len(names.get(prefix, ())) for prefix in touched) - len(same)
    stamps = _Version(directory, wanted, lists, texts, found, touched, same).replace() if touched else {}
    seen: Seen = {}
    latest = time.time_ns() - _RACY_NS
    for prefix, here in names.items():
        _, files = found.seen.get(prefix, ("", {}))
        if prefix in touched or prefix in odd:
            at = {name: stamps.get(prefix + name) or files[name] for name in here}
            files = {name: stamp for name, stamp in at.items() if stamp[2] < latest}
            seen[prefix] = (lists[prefix], files)
        else:
            seen[prefix] = found.seen[prefix]
    return WrittenFiles(written, len(wanted) - written, deleted, seen)


def _common_directory(prefixes: Collection[str]) -> str:
    """Return the common parent directory."""
    first, last = min(prefixes), max(prefixes)
    same = next((i for i, char in enumerate(first) if last[i : i + 1] != char), len(first))
    return first[: first.rfind("/", 0, same) + 1]


@dataclass(frozen=True, slots=True)
class _Version:
    """The next version of a directory: wanted files, lists, and the directories (`touched`) and files that differ."""

    directory: str
    wanted: Mapping[str, str]
    lists: Mapping[str, str]
    texts: Texts
    found: _OutputState
    touched: Collection[str]
    same: Collection[str]

    def replace(self) -> dict[str, Stamp]:
        """Replace the smallest directory that contains all changes; return the stamps of written files."""
        above = {prefix[: i + 1] for prefix in self.lists for i, char in enumerate(prefix) if char == "/"} | {""}
        part = _common_directory(self.touched)
        while part and (part not in above or part not in self.found.seen):
            part = part[: part.rfind("/", 0, -1) + 1]
        new = atomic_swap.new_name(self.directory)
        try:
            while True:
                atomic_swap.remove(new)
                stamps = self._stage(new, part)
                if not self.found.seen:
                    os.rename(new, self.directory)  # also replaces an empty directory
                    return stamps
                if atomic_swap.exchange_names(new, f"{self.directory}/{part}".rstrip("/")):
                    return stamps
                if not part:
                    atomic_swap.replace_directory(self.directory)
                    return stamps
                part = ""  # two renames of a part would briefly show half a directory
        finally:
            # After a failure the new version, after success the old one; leftovers are deleted by the next run.
            shutil.rmtree(new, ignore_errors=True)

    def _stage(self, new: str, part: str) -> dict[str, Stamp]:
        """Build the new version of a part of the directory; return the stamps of written files."""
        old, cut = self.directory, len(part)
        os.mkdir(new)
        if part in self.found.seen:
            os.chmod(new, os.stat(f"{old}/{part}").st_mode & 0o7777)
        for prefix in sorted(self.lists):
            if prefix.startswith(part):
                if prefix != part:
                    os.makedirs(f"{new}/{prefix[cut:]}", exist_ok=True)
                _create(f"{new}/{prefix[cut:]}{RENDERED}", self.lists[prefix])
        missing = []
        for path in self.wanted:
            if path.startswith(part):
                stays = path in self.same or path[: path.rfind("/") + 1] not in self.touched
                if not stays or not _hard_link(f"{old}/{path}", f"{new}/{path[cut:]}"):
                    missing.append(path)
        for path in self.found.added:
            if path.startswith(part) and path not in self.wanted:
                target = f"{new}/{path[cut:]}"
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if not _hard_link(f"{old}/{path}", target):
                    shutil.copy2(f"{old}/{path}", target, follow_symlinks=False)
        if not missing:
            return {}
        content = self.texts(missing)

        def create(paths: Sequence[str]) -> list[Stamp]:
            return [_create(f"{new}/{path[cut:]}", content[path]) for path in paths]

        stamps = parallel.in_slices(missing, create, _FILES_PER_SLICE)
        return dict(zip(missing, chain.from_iterable(stamps), strict=True))


def _hard_link(source: str, target: str) -> bool:
    """Hard-link a file; return False if the file system does not support it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            return False
        raise
    return True


def _create(path: str, text: str) -> Stamp:
    data = text.encode()
    # Not O_EXCL: a failed process may have created the file.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        done = os.write(handle, data)
        while done < len(data):  # writes may be short, e.g. when the disk is almost full
            done += os.write(handle, data[done:])
        about = os.fstat(handle)
        return about.st_ino, about.st_size, about.st_mtime_ns
    finally:
        os.close(handle)
