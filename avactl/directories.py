"""Directories of the user that avactl writes to."""

from __future__ import annotations

import os


def cache_directory() -> str:
    """Return the absolute path of avactl's caches: AVACTL_CACHE_DIR, or `avactl` in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("AVACTL_CACHE_DIR")
    if own:
        return os.path.abspath(own)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "avactl")
