"""Paths of values as users write them: `spec.datasets[name=imagenet].version`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from avactl.base.equality import is_same
from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.spec.documents.scalars import resolve_plain

_MAX_STEPS = 64
"""Steps of a path: values are nested at most 64 deep."""
_STEP = re.compile(r"""([^.\[\]="']+)|\[(\d+)\]|\[([A-Za-z]+)=([^\]]+)\]|\[(?:"([^"\]]+)"|'([^'\]]+)')\]""")


class PathError(HintedError):
    """The text is not a path."""

    exit_code = USAGE


class PathEntry(NamedTuple):
    """An entry of a list, selected by the value of one of its keys."""

    key: str
    value: str

    def find(self, entries: Any) -> int | None:
        """Return the index of the first entry of a list that has the value; None if there is none, or no list."""
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            given = entry.get(self.key) if isinstance(entry, dict) else None
            if given is not None and (given == self.value or is_same(given, resolve_plain(self.value))):
                return index
        return None


Selector = str | int | PathEntry
"""A key, the index of an entry, or an entry by the value of a key."""


def parse_path(text: str) -> list[Selector]:
    """Parse a path of at least one step. Raises PathError."""
    steps: list[Selector] = []
    position = 0
    while position < len(text):
        if text[position] == "." and position:
            position += 1
        match = _STEP.match(text, position)
        if match is None:
            hint = "write keys with dots, [0] or [name=x] for entries of lists, ['example.com/x'] for keys with dots"
            raise PathError(f"`{text}` is not a path", hint)
        key, index, by, value, *quoted = match.groups()
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(PathEntry(by, value) if by is not None else key or next(filter(None, quoted)))
        position = match.end()
        if len(steps) > _MAX_STEPS:
            raise PathError(f"the path has more than {_MAX_STEPS} steps", "no kind needs more than ten levels")
    if not steps:
        raise PathError("the path is empty", "write e.g. spec.workers.replicas")
    return steps


def value_at(root: Any, path: str) -> Any:
    """Return the value at a path of plain data; None if there is none. Raises PathError."""
    for step in parse_path(path):
        if isinstance(step, PathEntry):
            index = step.find(root)
            root = None if index is None else root[index]
        elif isinstance(step, int):
            root = root[step] if isinstance(root, list) and step < len(root) else None
        else:
            root = root.get(step) if isinstance(root, Mapping) else None
    return root
