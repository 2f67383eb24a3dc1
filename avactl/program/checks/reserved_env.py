"""Environment variables that avactl sets and reads: a spec that sets one by hand would mislead what reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item

Path = tuple[str | int, ...]
PREFIX = "AVACTL_"
SET_BY_USERS = frozenset({"AVACTL_PS_TOKEN"})
"""Settings of the worker library that a spec sets, from a Secret."""


def reserved_env_problems(
    item: Item, env: Iterable[str], path: Path, fields: Mapping[str, str] | None = None
) -> Iterator[Diagnostic]:
    """Yield `invalid-value` for each reserved name among the variables of the mapping at `path`.

    `fields`: the field that sets a variable, by its name; these names are reserved whatever they begin with.
    """
    for name in env:
        field = (fields or {}).get(name)
        if field is None and (not name.startswith(PREFIX) or name in SET_BY_USERS):
            continue
        other = f"a name that does not begin with `{PREFIX}`" if name.startswith(PREFIX) else "another name"
        yield Diagnostic(
            "invalid-value",
            f"{'.'.join(map(str, path))}: `{name}` is reserved for avactl",
            item.span(*path, name, key=True),
            hint=f"set `{field}`" if field else f"use {other}",
        )
