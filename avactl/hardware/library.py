"""The library of ready machine types: YAML files of kind MachineType that ship with avactl.

Only finding and reading is here; the compiler's resolve pass makes specs of them, and only of those in use.
"""

from __future__ import annotations

import os
from functools import cache

DIRECTORY = os.path.join(os.path.dirname(__file__), "library")  # noqa: PTH118, PTH120 - start-up counts
_SUFFIX = ".yaml"


@cache
def names() -> tuple[str, ...]:
    """The names of all shipped machine types, sorted. A directory listing: nothing is parsed."""
    found = os.listdir(DIRECTORY)  # noqa: PTH208 - start-up counts
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


def place(name: str) -> str:
    """The file of a shipped machine type as diagnostics and diffs name it: the same on every machine."""
    return f"<avactl>/hardware/library/{name}{_SUFFIX}"


def read(name: str) -> bytes:
    """The YAML text of a shipped machine type. Raises KeyError where the library has none of that name."""
    if name not in names():
        raise KeyError(name)
    with open(f"{DIRECTORY}/{name}{_SUFFIX}", "rb") as file:  # noqa: PTH123 - start-up counts
        return file.read()
