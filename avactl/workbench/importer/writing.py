"""Write specs as a person would: short mappings and lists on one line, scripts as block text."""

from __future__ import annotations

import textwrap
from typing import Any

from avactl.base.yaml_output import quote_scalar
from avactl.workbench.importer.model import Body

_MAX_LINE_WIDTH = 110
_MAX_FLOW_DEPTH = 3
"""Deepest nesting that is written on one line."""
_FLOW_MARKS = ",[]{}"


def spec_yaml(body: Body, comments: list[str]) -> str:
    """Return one document, with comments before it."""
    lines: list[str] = []
    for comment in comments:
        shown = "".join(char if char.isprintable() else " " for char in comment)
        lines += textwrap.wrap(
            shown, _MAX_LINE_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
    _write_mapping(body, 0, lines, top=True)
    return "\n".join(lines) + "\n"


def _flow_style(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow_text(str(key))}: {_flow_style(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow_style, value)) + "]"
    return _flow_text(value) if isinstance(value, str) else _format_scalar(value)


def _flow_text(value: str) -> str:
    """Return text inside a flow collection, where a comma or bracket ends a plain scalar."""
    written = quote_scalar(value)
    plain = written == value and not any(char in value for char in _FLOW_MARKS)
    return (
        written
        if plain or written != value
        else f'"{value}"'
        if '"' not in value and "\\" not in value
        else ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    )


def _format_scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return quote_scalar(value) if isinstance(value, str) else repr(value)


def _nesting_depth(value: Any) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_nesting_depth, below), default=0) if isinstance(value, dict | list) else 0


def _has_lines(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_lines, below))


def _format_on_one_line(value: Any, before: int) -> str | None:
    """Return the value on one line after `before` columns, or None if it does not fit."""
    if isinstance(value, dict | list) and (_nesting_depth(value) > _MAX_FLOW_DEPTH or _has_lines(value)):
        return None
    written = _flow_style(value) if isinstance(value, dict | list) else _format_scalar(value)
    return written if before + len(written) <= _MAX_LINE_WIDTH or not isinstance(value, dict | list) else None


def _write_mapping(value: Body, indent: int, lines: list[str], *, top: bool = False, lead: str = "") -> None:
    margin = " " * indent
    for key, inner in value.items():
        start = f"{lead or margin}{_flow_text(str(key))}:"
        lead = ""
        if isinstance(inner, str) and _is_block(inner):
            lines += [f"{start} |{'' if inner.endswith(chr(10)) else '-'}"]
            lines += [f"{margin}  {line}" if line else "" for line in inner.rstrip("\n").split("\n")]
            continue
        # `spec` itself is always written out.
        short = None if top and key in ("spec", "patches") and inner else _format_on_one_line(inner, len(start) + 1)
        if short is not None:
            lines.append(f"{start} {short}")
        elif isinstance(inner, dict):
            lines.append(start)
            _write_mapping(inner, indent + 2, lines)
        else:
            lines.append(start)
            _list(inner, indent + 2, lines)


def _list(value: list[Any], indent: int, lines: list[str]) -> None:
    margin = " " * indent
    for entry in value:
        short = None if isinstance(entry, str) and _is_block(entry) else _format_on_one_line(entry, indent + 2)
        if short is not None:
            lines.append(f"{margin}- {short}")
        elif isinstance(entry, dict):
            _write_mapping(entry, indent + 2, lines, lead=f"{margin}- ")
        elif isinstance(entry, list):
            lines.append(f"{margin}-")
            _list(entry, indent + 2, lines)
        else:
            lines.append(f"{margin}- |{'' if entry.endswith(chr(10)) else '-'}")
            lines += [f"{margin}  {line}" if line else "" for line in entry.rstrip("\n").split("\n")]


def _is_block(text: str) -> bool:
    """Return True for text of several lines that a block scalar holds exactly."""
    if "\n" not in text.rstrip("\n") and not (text.endswith("\n") and len(text) > 1):
        return False
    body = text[:-1] if text.endswith("\n") else text
    return (
        not body.endswith("\n")
        and not body.startswith((" ", "\n", "\t"))
        and all(char == "\n" or char.isprintable() for char in body)
        and all(line == line.rstrip() for line in body.split("\n"))
    )
