"""Plain scalars by the YAML 1.2 core schema: `no` and `on` are text, `0o17` is 15, `1:30` is text.

Source: YAML 1.2.2 section 10.3.2, tag resolution.
"""

from __future__ import annotations

import re

_IS_INT = re.compile(r"[-+]?[0-9]+").fullmatch
_IS_OCTAL = re.compile(r"0o[0-7]+").fullmatch
_IS_HEX = re.compile(r"0x[0-9a-fA-F]+").fullmatch
_IS_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?").fullmatch
_IS_INF = re.compile(r"[-+]?\.(inf|Inf|INF)").fullmatch

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_WORDS |= {word: float("nan") for word in (".nan", ".NaN", ".NAN")}

# Python refuses to parse longer numbers by default (sys.int_info.str_digits_check_threshold); no field needs them.
_MAX_DIGITS = 64


def resolve_plain(text: str) -> Scalar:
    """Resolve an unquoted scalar. Numbers with more than 64 digits stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "-+.0123456789" or len(text) > _MAX_DIGITS:
        return text
    if _IS_INT(text):
        return int(text)
    if _IS_FLOAT(text):
        return float(text)
    if _IS_OCTAL(text):
        return int(text[2:], 8)
    if _IS_HEX(text):
        return int(text[2:], 16)
    if _IS_INF(text):
        return float("-inf") if text[0] == "-" else float("inf")
    return text
