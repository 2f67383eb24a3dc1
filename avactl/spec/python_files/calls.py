"""Locate values of Python spec files: the arguments of constructor calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path as File
from types import CodeType, FrameType
from typing import Any, NamedTuple

from avactl.diagnostics import Span
from avactl.spec.documents.document import Path


class CallPlace(NamedTuple):
    """A range of a Python file: lines from 1, columns from 0 in bytes of UTF-8, as in `ast`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


def instruction_place(root: str, code: CodeType, instruction: int) -> CallPlace:
    """Return the place of an instruction in a file; its name is cut if it is below `root`, which ends with `/`."""
    line, end_line, column, end_column = next(
        islice(code.co_positions(), instruction // 2, None), (None, None, None, None)
    )
    line = line or code.co_firstlineno
    return CallPlace(code.co_filename.removeprefix(root), line, column or 0, end_line or line, end_column or 0)


_OWN_DIRECTORY = str(File(__file__).parents[1]) + "/"


def calling_place(frame: FrameType | None) -> CallPlace | None:
    """Return the place of the innermost call outside of avactl and pydantic; None if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN_DIRECTORY) and "/pydantic" not in file:
            return instruction_place("", frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


class PythonLocator:
    """Finds the constructor argument that set a value."""

    __slots__ = ("_path", "_places", "_text")

    def __init__(self, text: Callable[[str], str], path: str, places: Mapping[Path, CallPlace]) -> None:
        """`text` returns the text of a Python file by path; `places` are the calls by the object they constructed."""
        self._text = text
        self._path = path
        self._places = places

    def locate(self, index: int, path: Path, key: bool) -> Span:
        for length in range(len(path), -1, -1):
            place = self._places.get(path[:length])
            if place is not None:
                return self._within(place, path[length:], key)
        return Span(self._path)

    def _within(self, place: CallPlace, rest: Path, key: bool) -> Span:
        """Return the span of the argument at `rest` of a call; the call's name if the argument cannot be determined."""
        text = self._text(place.file)
        call = _find_calls(text).get(place[1:])
        if call is None:
            return span_in(place.file, text, place.line, place.column, place.end_line, place.end_column)
        name: ast.AST | None = None
        node: ast.AST = call
        for step in rest:
            found = _find_argument(node, step)
            if found is None:
                name, node = None, call
                break
            name, node = found
        if key and isinstance(name, ast.keyword):
            width = len((name.arg or "").encode())
            return span_in(place.file, text, name.lineno, name.col_offset, name.lineno, name.col_offset + width)
        if key and name is not None:
            node = name
        if isinstance(node, ast.Call):
            node = node.func  # a call may span many lines: mark its name only
        at: Any = node
        end_line, end_column = at.end_lineno or at.lineno, at.end_col_offset or 0
        return span_in(place.file, text, at.lineno, at.col_offset, end_line, end_column)


def _find_argument(node: ast.AST, step: str | int) -> tuple[ast.AST | None, ast.AST] | None:
    """Return the name and value nodes of one path step: an argument of a call, or an entry of a literal."""
    if isinstance(node, ast.Call) and isinstance(step, str):
        return next(((k, k.value) for k in node.keywords if k.arg is not None and _is_same_name(k.arg, step)), None)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return next(
            ((k, v) for k, v in pairs if isinstance(k, ast.Constant) and _is_same_name(str(k.value), str(step))), None
        )
    if isinstance(node, ast.List | ast.Tuple) and isinstance(step, int) and step < len(node.elts):
        known = not any(isinstance(entry, ast.Starred) for entry in node.elts[: step + 1])
        return (None, node.elts[step]) if known else None
    return None


def _is_same_name(name: str, key: str) -> bool:
    """Return whether a Python name and a YAML key are equivalent: `max_surge`, `maxSurge`."""
    return name == key or name.replace("_", "").lower() == key.replace("_", "").lower()


@cache
def _find_calls(text: str) -> dict[tuple[int, int, int, int], ast.Call]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {
        (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


def span_in(file: str, text: str, line: int, column: int, end_line: int, end_column: int) -> Span:
    """Return a span in characters, clamped to the file."""
    lines = text.removesuffix("\n").split("\n")
    line = min(max(1, line), len(lines))
    raw = lines[line - 1].encode()

    def characters(offset: int) -> int:
        return len(raw[: max(0, offset)].decode(errors="replace"))

    start = characters(column)
    end = characters(end_column) if end_line == line else 0
    return Span(file, line, start + 1, end + 1 if end > start else 0)
