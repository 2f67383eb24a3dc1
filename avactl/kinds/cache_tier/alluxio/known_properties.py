"""Names of all properties that Alluxio 2.9.4 knows, from the engine itself.

`python -m tools.alluxio keys` prints them; a line `^…$` is a pattern of names.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from avactl.diagnostics.suggest import WordIndex

_NAMES_FILE = Path(__file__).with_name("property_names.txt")


@cache
def _property_names() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    lines = _NAMES_FILE.read_text(encoding="utf-8").splitlines()
    # Java writes named groups as (?<name>…).
    patterns = tuple(re.compile(line.replace("(?<", "(?P<")) for line in lines if line.startswith("^"))
    return frozenset(line for line in lines if not line.startswith("^")), patterns


def is_known_property(name: str) -> bool:
    """Return True if this version of Alluxio reads the property."""
    names, patterns = _property_names()
    return name in names or any(pattern.search(name) for pattern in patterns)


def similar_property(name: str) -> str | None:
    """Return the known property with the most similar name; None if none is similar."""
    return _property_index().closest(name)


@cache
def _property_index() -> WordIndex:
    return WordIndex(_property_names()[0])
