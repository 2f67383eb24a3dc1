"""The warning about a key of a spec that changes nothing."""

from __future__ import annotations

from avactl.diagnostics import Diagnostic
from avactl.kinds.program import Item


def without_effect(item: Item, path: tuple[str | int, ...], why: str) -> Diagnostic:
    """Return a warning at the key `path[-1]`; `why` completes "has no effect here: …"."""
    return Diagnostic(
        "without-effect",
        f"`{path[-1]}` has no effect here: {why}",
        item.span(*path, key=True),
        severity="warning",
        hint="remove the key",
    )
