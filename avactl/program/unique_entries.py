"""Uniqueness of named list entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.program.program import Item


def check_duplicates(
    item: Item, path: tuple[str | int, ...], names: Iterable[str], what: str, key: str | None = "name"
) -> Iterator[Diagnostic]:
    """Yield a problem for each duplicate name in the list at `path`.

    `what` describes one entry (`bucket`); `key` holds an entry's name, or is None if the entry itself is the name.
    """
    first: dict[str, int] = {}
    tail = () if key is None else (key,)
    for index, name in enumerate(names):
        before = first.setdefault(name, index)
        if before != index:
            yield Diagnostic(
                "duplicate-entry",
                f"duplicate {what} `{name}` in `{path[-1]}`",
                item.span(*path, index, *tail),
                label="duplicate",
                hint="rename or remove one of them",
                notes=(Note(item.span(*path, before, *tail), "first occurrence"),),
            )
