"""Directories and files of the user that avactl writes to."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def cache_directory() -> str:
    """Return the absolute path of avactl's caches: AVACTL_CACHE_DIR, or `avactl` in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("AVACTL_CACHE_DIR")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "avactl")


def _enclosing_repositories(path: str | Path) -> list[Path]:
    """Return the repositories that a path is in, by its name: symbolic links are not followed."""
    parents = Path(os.path.abspath(path)).parents
    return [top for top in parents if (top / ".git").exists() or (top / "avactl.yaml").exists()]


def want_no_link(path: str | Path) -> None:
    """Raise OSError if the directory of an output is a symbolic link of a repository: a branch may have made it."""
    directory = Path(os.path.abspath(path)).parent
    for top in _enclosing_repositories(path):
        if directory.resolve() != top.resolve() / directory.relative_to(top):
            raise OSError(errno.ELOOP, "its directory is a symbolic link of the repository", str(path))


def write_file(path: Path, text: str) -> None:
    """Write a text. A symbolic link of a repository is replaced, not followed. Raises OSError."""
    want_no_link(path)
    if path.is_symlink() and _enclosing_repositories(path):
        path.unlink()
    path.write_text(text, encoding="utf-8")
