"""The library of machine types: YAML files of kind MachineType that ship with avactl.

Only finds and reads them; the compiler's resolve pass parses those in use.
"""

from __future__ import annotations

import os
from functools import cache

DIRECTORY = os.path.join(os.path.dirname(__file__), "library")  # noqa: PTH118, PTH120 - start-up counts
_FILE_SUFFIX = ".yaml"


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped machine types, sorted, from a directory listing without parsing."""
    found = os.listdir(DIRECTORY)  # noqa: PTH208 - start-up counts
    return tuple(sorted(name.removesuffix(_FILE_SUFFIX) for name in found if name.endswith(_FILE_SUFFIX)))


def display_path(name: str) -> str:
    """Return the display name of a shipped machine type's file: the same on every machine."""
    return f"<avactl>/hardware/library/{name}{_FILE_SUFFIX}"


def is_place(file: str) -> bool:
    """Return True for the display name of a shipped file, which is no path of a repository.

    To print it only: whether a spec is shipped, `Document.shipped` says.
    """
    return file.startswith("<") and file in map(display_path, shipped_names())


def read(name: str) -> bytes:
    """Return the YAML text of a shipped machine type. Raises KeyError if it does not exist."""
    if name not in shipped_names():
        raise KeyError(name)
    with open(f"{DIRECTORY}/{name}{_FILE_SUFFIX}", "rb") as file:  # noqa: PTH123 - start-up counts
        return file.read()
