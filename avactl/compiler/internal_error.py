"""Reports a bug in avactl or a plug-in kind like any other problem, at the affected spec."""

from __future__ import annotations

import os

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item


def is_debugging() -> bool:
    """Return True if internal errors are raised with their traceback: AVACTL_DEBUG is set."""
    return bool(os.environ.get("AVACTL_DEBUG"))


def defect_diagnostic(item: Item, error: Exception) -> Diagnostic:
    """Return the diagnostic for an exception from a spec's checks or lowering. Raises the exception when debugging."""
    if is_debugging():
        raise error
    message = f"{item} cannot be compiled: {type(error).__name__}: {error}"
    hint = "this is a bug in avactl, please report it; AVACTL_DEBUG=1 shows the traceback"
    return Diagnostic("internal-error", message, item.span("metadata", "name"), hint=hint)
