"""Lists whose entries have names: no name may stand twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.program import Item


def duplicates(
    item: Item, path: tuple[str | int, ...], names: Iterable[str], what: str, key: str | None = "name"
) -> Iterator[Diagnostic]:
    """A problem for each name that stands a second time in the list at `path`.

    `what` names one entry (`bucket`); `key` is where an entry has its name, None where it is a name itself.
    """
    first: dict[str, int] = {}
    tail = () if key is None else (key,)
    for index, name in enumerate(names):
        before = first.setdefault(name, index)
        if before != index:
            yield Diagnostic(
                "duplicate-entry",
                f"{what} `{name}` stands twice in `{path[-1]}`",
                item.span(*path, index, *tail),
                label="second time",
                hint="rename or remove one of the two",
                notes=(Note(item.span(*path, before, *tail), "first time"),),
            )
