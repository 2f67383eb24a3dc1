"""Which objects of a dataset: globs, and labels from the names of directories."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any

import orjson

from avactl.datasets.errors import ArgumentError

Chooses = Callable[[str], bool]


def choose(match: Sequence[str], exclude: Sequence[str]) -> Chooses:
    """Return the choice of paths by globs, as of fnmatch; a glob without `/` applies to the name of the file."""
    chosen, dropped = _compile_globs(match), _compile_globs(exclude)
    if chosen is None and dropped is None:
        return lambda path: True
    return lambda path: (chosen is None or chosen(path)) and not (dropped is not None and dropped(path))


def _compile_globs(globs: Sequence[str]) -> Chooses | None:
    if not globs:
        return None
    found = (translate(f"/{glob}" if "/" in glob else f"*/{glob}") for glob in globs)
    fits = re.compile("|".join(f"(?:{each})" for each in found)).match
    return lambda path: fits(f"/{path}") is not None


def directory_labels(pattern: str) -> Callable[[str], dict[str, str]]:
    """Return the labels of a path by a pattern such as `split/class`, one name per directory from the left.

    `_` skips a directory. Raises ArgumentError.
    """
    names = pattern.split("/") if pattern else []
    used = [name for name in names if name != "_"]
    if not all(names) or len(set(used)) < len(used):
        raise ArgumentError(f"`{pattern}` does not name labels", "write one name per directory: `--labels split/class`")

    def labels(path: str) -> dict[str, str]:
        return {name: part for name, part in zip(names, path.split("/")[:-1], strict=False) if name != "_"}

    return labels


def label_filter(wanted: Sequence[str]) -> Callable[[Mapping[str, Any]], bool]:
    """Return the choice of labels by `NAME=VALUE`: values of one name are alternatives. Raises ArgumentError."""
    values: dict[str, set[str]] = {}
    for each in wanted:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise ArgumentError(f"`{each}` is not a label", "write `--label class=cat`")
        values.setdefault(name, set()).add(value)
    return lambda labels: all(label_text(labels.get(name, "")) in accepted for name, accepted in values.items())


def label_text(value: Any) -> str:
    """Format the value of a label."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
