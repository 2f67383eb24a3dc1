"""Parse answers of sandboxed children. A spec file may have forged one: treat it as bounded, untrusted data."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

from avactl.diagnostics import Diagnostic, Span

_MAX_VALUES = 4_000_000
"""Maximum number of values in an answer, counted by their separators."""
_MAX_DEPTH = 100
"""Deepest nesting of an answer; that of a spec within it is less (`avactl.program.python_capture`)."""
_LONGEST_NUMBER = 68
_LONGEST_TEXT = 1000
_LARGEST_PLACE = 1 << 31

FORGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions raised when an answer does not have the expected shape."""


def parse(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, finite numbers, no lone surrogates, bounded depth. Raises ValueError."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        raise ValueError("too many values")
    source = data.decode("utf-8")
    try:
        value = json.loads(source, parse_constant=_refuse_constant, parse_int=_parse_integer, parse_float=_parse_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(value)
    if "\\ud" in source or "\\uD" in source:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def bounded_text(value: Any) -> str:
    """Return a string of an answer, truncated if long. Raises ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value[:_LONGEST_TEXT]


def bounded_coordinate(value: Any) -> int:
    """Return a line or column of an answer. Raises ValueError if it is not one."""
    if type(value) is not int or not 0 <= value < _LARGEST_PLACE:
        raise ValueError("not a line or a column")
    return value


def not_confined(path: str, missing: tuple[str, ...], rule: str = "") -> Diagnostic:
    """Return the diagnostic for a file that this machine cannot evaluate safely."""
    message = f"the file was not evaluated: this machine cannot sandbox it, because it lacks {' and '.join(missing)}"
    hint = (
        "run avactl on Linux 5.13 or newer with seccomp and Landlock; or set AVACTL_TRUST_PYTHON=1 in the environment "
        "if you trust every branch that you compile as much as your own programs"
    )
    return Diagnostic("python-not-confined", message, Span(path), hint=hint, rule=rule)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("a number is too long")
    return int(digits)


def _parse_number(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError("a number is too large")
    return value


def _check_depth(value: Any) -> None:
    """Raise ValueError if containers are nested too deeply."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [v for v in each.values() if isinstance(v, dict | list)]
            elif isinstance(each, list):
                inner += [v for v in each if isinstance(v, dict | list)]
        level = inner
