"""The output directory of `avactl render`: ours, whole, and replaced in one step.

Every directory that holds files of ours holds the list of them too, with their SHA-256: `.avactl-render`, in the format
of `sha256sum`. By it we know what is ours, what somebody changed, and what somebody added. It has no ending that
`kubectl apply -R` or a GitOps engine would read. A run replaces the smallest directory that contains all changes;
files that stay the same are linked into the new version, not written again.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NoReturn

from avactl.emit import swap
from avactl.source.tree import RENDERED

Stamp = tuple[int, int, int, str]
"""A file as it was last seen: inode, bytes, time of change (ns), SHA-256 of its content."""
Texts = Callable[[Collection[str]], Mapping[str, str]]
"""Contents of files by their paths."""

_HEADER = "# Written by `avactl render`. Files that are not listed here are not its own. Check: sha256sum -c\n"
_RACY = 20_000_000
"""A file changed less than this many ns before it was looked at could change again within one tick of the clock."""
_NAMED = 5


class OutputError(Exception):
    """Nothing was written. The text is one line; `hint` is the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Written:
    """What a run did, in numbers of files, and how the files now look."""

    written: int
    kept: int
    deleted: int
    stamps: dict[str, Stamp]


@dataclass(slots=True)
class _Found:
    """An output directory as it stands."""

    files: dict[str, Stamp] = field(default_factory=dict)
    """Files of ours, by their path."""
    lists: dict[str, str] = field(default_factory=dict)
    """Text of the list of each directory that has one."""
    changed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)


def write(
    directory: str,
    wanted: Mapping[str, str],
    texts: Texts,
    *,
    force: bool = False,
    stamps: Mapping[str, Stamp] | None = None,
) -> Written:
    """Make the directory hold exactly the wanted files: SHA-256 by path with `/`.

    `texts` is asked for the content of those that are not there yet. `stamps` are those of the run before: a file that
    looks as it did then is not read. With `force`, files changed by hand are overwritten, and those added by hand stay;
    without, both are refused. Raises OutputError; then the directory is as it was.
    """
    directory = os.path.abspath(directory)
    parent, name = os.path.split(directory)
    try:
        _check_place(directory, name)
        os.makedirs(parent, exist_ok=True)
        with swap.locked(parent):
            swap.recover(directory)
            found = _look(directory, stamps or {})
            _refuse(directory, found, force)
            return _update(directory, wanted, texts, found)
    except OSError as error:
        _explain(directory, error)


def _check_place(directory: str, name: str) -> None:
    if not name or os.path.ismount(directory):
        what = "the root directory" if not name else "a mount point"
        raise OutputError(f"{directory} is {what}, which cannot be replaced", "give a directory below it")
    if os.path.islink(directory):
        raise OutputError(f"{directory} is a symbolic link", "give the directory itself")
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise OutputError(f"{directory} is a file", "give a directory, new or empty, or one that avactl wrote")
    here = os.getcwd()
    if here == directory or here.startswith(directory + os.sep):
        raise OutputError(f"the current directory is in {directory}, which is replaced", "run it from elsewhere")


def _explain(directory: str, error: OSError) -> NoReturn:
    """The error of the operating system as one line with a remedy."""
    why = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else directory
    hint = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space: the new version stands beside the old one until it is whole"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "the directory is replaced as a whole, so the one above it must be writable too"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        hint = "a file stands where a directory is needed"
    raise OutputError(f"{directory} was not written: {where}: {why}", hint) from error


# -- what is there -------------------------------------------------------------------------------------------------


def _look(directory: str, stamps: Mapping[str, Stamp]) -> _Found:
    """What stands in the directory. Raises OutputError if it is not ours."""
    found = _Found()
    if not os.path.isdir(directory):
        return found
    if not os.path.lexists(f"{directory}/{RENDERED}"):
        with os.scandir(directory) as entries:
            first = min((entry.name for entry in entries), default=None)
        if first is not None:
            message = f"{directory} is not empty, and `avactl render` did not write it (it has no {RENDERED}): {first}"
            raise OutputError(message, "give a new or an empty directory")
        return found
    _scan(directory, "", stamps, found)
    return found


def _scan(directory: str, prefix: str, stamps: Mapping[str, Stamp], found: _Found) -> None:
    found.directories.add(prefix)
    with os.scandir(f"{directory}/{prefix}") as listing:
        entries = list(listing)
    listed: dict[str, list[str]] = {}
    for entry in entries:
        if entry.name == RENDERED and entry.is_file(follow_symlinks=False):
            text = _read(entry.path).decode("utf-8", "replace")
            found.lists[prefix] = text
            listed = _parse(text)
    for entry in entries:
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            _scan(directory, f"{path}/", stamps, found)
        elif entry.name == RENDERED and entry.is_file(follow_symlinks=False):
            continue
        elif entry.name not in listed or not entry.is_file(follow_symlinks=False):
            found.added.append(path)
        else:
            about = entry.stat(follow_symlinks=False)
            known = stamps.get(path)
            if known is None or known[:3] != (about.st_ino, about.st_size, about.st_mtime_ns):
                known = (about.st_ino, about.st_size, about.st_mtime_ns, sha256(_read(entry.path)).hexdigest())
            found.files[path] = known
            if known[3] not in listed[entry.name]:
                found.changed.append(path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parse(text: str) -> dict[str, list[str]]:
    """Names and digests of a list. Other lines (a merge in git may leave marks) are not looked at."""
    listed: dict[str, list[str]] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) == 64 and name:
            listed.setdefault(name, []).append(digest)
    return listed


def _refuse(directory: str, found: _Found, force: bool) -> None:
    """Hand-made changes are not overwritten silently."""
    special = [path for path in found.added if not _can_stay(f"{directory}/{path}")]
    if special:
        raise OutputError(f"{directory} holds what is no file: {_names(special)}", "move it away")
    if force:
        return
    problems = []
    if found.changed:
        problems.append(f"changed by hand: {_names(found.changed)}")
    if found.added:
        problems.append(f"added by hand: {_names(found.added)}")
    if problems:
        hint = "change the specs instead, or move the files away; --force overwrites the changed and leaves the added"
        raise OutputError(f"{directory} has files that would be lost: {'; '.join(problems)}", hint)


def _can_stay(path: str) -> bool:
    return os.path.islink(path) or os.path.isfile(path)


def _names(paths: list[str]) -> str:
    shown = ", ".join(sorted(paths)[:_NAMED])
    return f"{shown} and {len(paths) - _NAMED} more" if len(paths) > _NAMED else shown


# -- what becomes of it --------------------------------------------------------------------------------------------


def _by_directory(paths: Iterable[str]) -> dict[str, list[str]]:
    """Names of files by their directory ("" or with a `/` at the end); the top is always there."""
    names: dict[str, list[str]] = {"": []}
    for path in paths:
        cut = path.rfind("/") + 1
        names.setdefault(path[:cut], []).append(path[cut:])
    return names


def _list(prefix: str, names: list[str], wanted: Mapping[str, str]) -> str:
    return _HEADER + "".join(f"{wanted[prefix + name]}  {name}\n" for name in sorted(names))


def _update(directory: str, wanted: Mapping[str, str], texts: Texts, found: _Found) -> Written:
    lists = {prefix: _list(prefix, names, wanted) for prefix, names in _by_directory(wanted).items()}
    same = {path for path, stamp in found.files.items() if wanted.get(path) == stamp[3]}
    touched = {prefix for prefix in (*lists, *found.lists) if lists.get(prefix) != found.lists.get(prefix)}
    touched |= {path[: path.rfind("/") + 1] for path in (*wanted, *found.files) if path not in same}
    result = Written(
        len(wanted) - len(same), len(same), len(found.files.keys() - wanted.keys()), _trusted(found.files, same)
    )
    if not touched:
        return result
    above = {prefix[: i + 1] for prefix in lists for i, char in enumerate(prefix) if char == "/"} | {""}
    part = _common(touched)
    while part not in above or part not in found.directories:
        if not part:
            break
        part = part[: part.rfind("/", 0, -1) + 1]
    new = swap.new_name(directory)
    try:
        while True:
            swap.remove(new)
            new_stamps = _stage(directory, new, part, wanted, lists, texts, found, same)
            if not found.directories:
                os.rename(new, directory)  # takes the place of an empty directory too
                break
            if swap.exchange(new, f"{directory}/{part}".rstrip("/")):
                break
            if not part:
                swap.replace(directory)
                break
            part = ""  # renaming a part away and the new one in would show half a directory
    finally:
        # The new version if something went wrong, the old one if not; what cannot be deleted is tried again next time.
        shutil.rmtree(new, ignore_errors=True)
    result.stamps.update(new_stamps)
    return result


def _common(prefixes: Collection[str]) -> str:
    """The directory that all of them are in."""
    first, last = min(prefixes), max(prefixes)
    same = next((i for i, char in enumerate(first) if last[i : i + 1] != char), len(first))
    return first[: first.rfind("/", 0, same) + 1]


def _trusted(files: Mapping[str, Stamp], paths: Iterable[str]) -> dict[str, Stamp]:
    latest = time.time_ns() - _RACY
    return {path: files[path] for path in paths if files[path][2] < latest}


def _stage(
    directory: str,
    new: str,
    part: str,
    wanted: Mapping[str, str],
    lists: Mapping[str, str],
    texts: Texts,
    found: _Found,
    same: Collection[str],
) -> dict[str, Stamp]:
    """Build the new version of a part of the directory; stamps of what was written."""
    cut = len(part)
    os.mkdir(new)
    if part in found.directories:
        os.chmod(new, os.stat(f"{directory}/{part}").st_mode & 0o7777)
    for prefix in sorted(lists):
        if prefix.startswith(part):
            if prefix != part:
                os.makedirs(f"{new}/{prefix[cut:]}", exist_ok=True)
            _create(f"{new}/{prefix[cut:]}{RENDERED}", lists[prefix])
    missing = []
    for path in wanted:
        if path.startswith(part) and (path not in same or not _link(f"{directory}/{path}", f"{new}/{path[cut:]}")):
            missing.append(path)
    for path in found.added:
        if path.startswith(part):
            target = f"{new}/{path[cut:]}"
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not _link(f"{directory}/{path}", target):
                shutil.copy2(f"{directory}/{path}", target, follow_symlinks=False)
    stamps: dict[str, Stamp] = {}
    if missing:
        for path, text in texts(missing).items():
            about = _create(f"{new}/{path[cut:]}", text)
            stamps[path] = (about.st_ino, about.st_size, about.st_mtime_ns, wanted[path])
    return _trusted(stamps, stamps)


def _link(source: str, target: str) -> bool:
    """Whether the file system took a second name for the file."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            return False
        raise
    return True


def _create(path: str, text: str) -> os.stat_result:
    data = text.encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        done = os.write(handle, data)
        while done < len(data):  # a write may be short, e.g. just before the disk is full
            done += os.write(handle, data[done:])
        return os.fstat(handle)
    finally:
        os.close(handle)
