"""Errors of reading source objects, in words: values of other types than their kind has, or a defect of avactl."""

from __future__ import annotations

import traceback
from pathlib import Path

from avactl.compiler.internal_error import is_debugging
from avactl.program import kubernetes_schema
from avactl.workbench.importer.model import GivenValue

READ_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of reading values of other types than the kind has. Kinds of operators have no schema here."""
_MAX_TEXT = 200


def explain_failure(given: GivenValue, error: Exception) -> str:
    """Return why an object could not be read. Raises the error of a kind whose schema is known while debugging."""
    if isinstance(error, ValueError):
        return f"a value is not one that its kind accepts: {' '.join(str(error).split())[:_MAX_TEXT]}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    if kubernetes_schema.find(str(given.value["apiVersion"]), given.kind) is None:
        return f"a value has a type that its kind does not accept, or avactl has a defect ({place})"
    if is_debugging():
        raise error
    return f"avactl has a defect ({place}): please report it, with the object"
