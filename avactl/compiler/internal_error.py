"""A defect of avactl, or of a kind that a plug-in adds, told like any other problem: at the spec that shows it."""

from __future__ import annotations

import os

from avactl.diagnostics import Diagnostic
from avactl.kinds.program import Item


def debugging() -> bool:
    """Whether defects are to be raised as they are, with their traceback: where AVACTL_DEBUG is set."""
    return bool(os.environ.get("AVACTL_DEBUG"))


def defect(item: Item, error: Exception) -> Diagnostic:
    """The diagnostic of an exception that the checks or the lowering of a spec raised. Raises it when debugging."""
    if debugging():
        raise error
    return Diagnostic(
        "internal-error",
        f"{item} cannot be compiled: {type(error).__name__}: {error}",
        item.span("metadata", "name"),
        hint="this is a defect of avactl, please report it; AVACTL_DEBUG=1 shows where it is",
    )
