"""Diagnostics as text: the source line, a caret, the remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from avactl.base.terminal import inert_text, visible_text
from avactl.diagnostics.model import Diagnostic, Span
from avactl.diagnostics.redaction import MASK, redact_text

SourceText = Callable[[str], str | None]
"""Returns the text of a file by path; None if it does not exist."""

CAP = 200
"""Maximum number of problems printed; the rest are counted."""

_ANSI_COLOURS = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "bold": "\x1b[1m",
    "blue": "\x1b[1;34m",
    "off": "\x1b[0m",
}
_MAX_LINE_WIDTH = 160
_CHARACTERS_AROUND = 8192
"""Characters around a truncated line that are scanned for credentials."""


class _ProblemStyle:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, name: str, text: str) -> str:
        return f"{_ANSI_COLOURS[name]}{text}{_ANSI_COLOURS['off']}" if self.colour else text


def _source_line(source: str | None, span: Span) -> str | None:
    if source is None:
        return None
    lines = source.split("\n", span.line)
    return lines[span.line - 1].rstrip("\r") if 0 < span.line <= len(lines) else None


def _visible_window(line: str, span: Span, secret: bool) -> tuple[str, int]:
    """Return the visible part of a line, truncated around the caret, and the caret's column in it (from 0)."""
    column = span.column - 1
    start = (
        max(0, min(column - _MAX_LINE_WIDTH // 2, len(line) - _MAX_LINE_WIDTH)) if len(line) > _MAX_LINE_WIDTH else 0
    )
    end = start + _MAX_LINE_WIDTH
    # Scan beyond the visible part: a credential may begin before the cut.
    far = max(0, start - _CHARACTERS_AROUND)
    if secret:
        line = line[:far] + redact_text(line[far:column]) + MASK
    else:
        line = line[:far] + redact_text(line[far : end + _CHARACTERS_AROUND]) + line[end + _CHARACTERS_AROUND :]
    before, after = ("…" if start else ""), ("…" if end < len(line) else "")
    return f"{before}{visible_text(line[start:end])}{after}", column - start + len(before)


def _text_columns(text: str) -> int:
    """Return the terminal width of a text: East Asian characters take two columns, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(ch) else 2 if east_asian_width(ch) in "WF" else 1 for ch in text)


def render_one(diagnostic: Diagnostic, source: SourceText, colour: bool = False) -> str:
    """Return one problem as several lines of text, without a trailing newline."""
    style = _ProblemStyle(colour)
    d = diagnostic
    out = [f"{style(d.severity, f'{d.severity}[{d.id}]')}{style('bold', ': ' + visible_text(d.message))}"]
    out.append(f"{style('blue', '  -->')} {visible_text(str(d.span))}")
    line = _source_line(source(d.span.file), d.span)
    pad = " " * len(str(d.span.line))
    if line is not None:
        shown, column = _visible_window(line, d.span, d.secret)
        width = min(d.span.end_column - d.span.column, len(shown) - column) if d.span.end_column else 1
        caret = "^" * max(1, _text_columns(shown[column : column + max(1, width)]))
        label = f" {visible_text(d.label)}" if d.label else ""
        out.append(f"{style('blue', f'{d.span.line} |')} {shown}".rstrip())
        out.append(
            f"{style('blue', f'{pad} |')} {' ' * _text_columns(shown[:column])}{style(d.severity, caret + label)}"
        )
    for note in d.notes:
        place = visible_text(str(note.span))
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'note')}: {visible_text(note.text)} ({place})")
    if d.hint:
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'help')}: {visible_text(d.hint)}")
    return inert_text("\n".join(out))


_MIN_GROUP_SIZE = 4
"""Minimum number of equal problems that are printed as one."""
_MAX_PLACES = 6
"""Maximum number of further places named for a group."""
_DIGITS = re.compile("[0-9]+").sub


class _Group(NamedTuple):
    first: Diagnostic
    others: list[Diagnostic]


def _group_problems(diagnostics: Sequence[Diagnostic]) -> list[_Group]:
    """Collect the problems that a loop, a template, a copied mistake or a renamed spec repeats.

    They have one code and remedy: at one place or in one file, where they differ at most in numbers, or in several.
    """
    texts = [(d.severity, d.id, d.message, d.hint) for d in diagnostics]
    files: dict[tuple[str, ...], set[str]] = {}
    for d, text in zip(diagnostics, texts, strict=True):
        files.setdefault(text, set()).add(d.span.file)
    counts = Counter(texts)
    same: dict[tuple[str, ...], list[Diagnostic]] = {}
    for d, text in zip(diagnostics, texts, strict=True):
        several = len(files[text]) > 1 and counts[text] >= _MIN_GROUP_SIZE
        in_file = (d.severity, d.id, d.span.file, _DIGITS("#", d.message), _DIGITS("#", d.hint))
        same.setdefault(text if several else in_file, []).append(d)
    found = []
    for equal in same.values():
        one_place = len({each.span for each in equal}) == 1
        if len(equal) >= (2 if one_place else _MIN_GROUP_SIZE):
            found.append(_Group(equal[0], equal[1:]))
        else:
            found += [_Group(each, []) for each in equal]
    turns = {id(d): turn for turn, d in enumerate(diagnostics)}
    return sorted(found, key=lambda group: turns[id(group.first)])


def _repetition_text(group: _Group) -> str:
    """Return where else the problem of a group is; "" if it is at the same place."""
    here = group.first.span
    places = sorted({(d.span.file, d.span.line) for d in group.others} - {(here.file, here.line)})
    if not places:
        return ""
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    if any(file != here.file for file, _ in places):
        return f"also at {', '.join(f'{file}:{line}' for file, line in places[:_MAX_PLACES])}{more}"
    lines = ", ".join(str(line) for _, line in places[:_MAX_PLACES])
    return f"also in line{'s' if len(places) > 1 else ''} {lines}{more}"


def _render_group(group: _Group, source: SourceText, colour: bool) -> str:
    if not group.others:
        return render_one(group.first, source, colour)
    text = render_one(replace(group.first, message=f"{group.first.message} (×{1 + len(group.others)})"), source, colour)
    pad = " " * len(str(group.first.span.line))
    style = _ProblemStyle(colour)
    places = _repetition_text(group)
    note = f"\n{style('blue', f'{pad} =')} {style('bold', 'note')}: {places}" if places else ""
    return text + note


def render_text(diagnostics: Sequence[Diagnostic], source: SourceText, colour: bool = False, cap: int = CAP) -> str:
    """Return all problems, separated by empty lines, with a count at the end."""
    groups = _group_problems(diagnostics)
    parts = [_render_group(group, source, colour) for group in groups[:cap]]
    if len(groups) > cap:
        parts.append(f"… and {sum(1 + len(group.others) for group in groups[cap:])} more")
    parts.append(summary_text(diagnostics))
    return "\n\n".join(parts) + "\n"


def summary_text(diagnostics: Iterable[Diagnostic]) -> str:
    """Return e.g. `2 errors, 1 warning`."""
    counts = {"error": 0, "warning": 0}
    for d in diagnostics:
        counts[d.severity] += 1
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items() if n]
    return ", ".join(parts) or "no problems"


def render_problems(
    diagnostics: Sequence[Diagnostic], read_file: Callable[[str], bytes | None], colour: bool = False
) -> str:
    """Return diagnostics as text, with paths from the root of their repository, whose files `read_file` gives."""

    def source(file: str) -> str | None:
        data = read_file(file)
        return None if data is None else data.decode("utf-8", "replace")

    return render_text(diagnostics, source, colour)
