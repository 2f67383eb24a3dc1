"""Mount options that JuiceFS Community Edition 1.4.2 knows, from the engine itself.

`python -m tools.juicefs options` prints them, one a line: name, `value` or `flag`, and its description with unit and
default, separated by tabs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from avactl.diagnostics.suggest import WordIndex

VERSION = "1.4.2"
_OPTIONS_FILE = Path(__file__).with_name("mount_options.txt")


class Option(NamedTuple):
    """A mount option."""

    flag: bool
    """True if it has no value."""
    description: str
    """Description with unit and default, as JuiceFS prints it."""


@cache
def known_options() -> dict[str, Option]:
    """Return all options by name."""
    lines = (line.split("\t") for line in _OPTIONS_FILE.read_text(encoding="utf-8").splitlines())
    return {name: Option(kind == "flag", text) for name, kind, text in lines}


def similar_option(name: str) -> str | None:
    """Return the known option with the most similar name; None if none is similar."""
    return _option_index().closest(name)


@cache
def _option_index() -> WordIndex:
    return WordIndex(known_options())
