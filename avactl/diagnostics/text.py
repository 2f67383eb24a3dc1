"""Diagnostics as text: the source line, a caret, the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from avactl.base.terminal import inert, visible
from avactl.diagnostics.model import Diagnostic, Span
from avactl.diagnostics.redaction import MASK, redact

SourceText = Callable[[str], str | None]
"""Returns the text of a file by path; None if it does not exist."""

CAP = 200
"""Maximum number of problems printed; the rest are counted."""

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "bold": "\x1b[1m", "blue": "\x1b[1;34m", "off": "\x1b[0m"}
_WIDTH = 160
_AROUND = 8192
"""Characters around a truncated line that are scanned for credentials."""


class _Style:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, name: str, text: str) -> str:
        return f"{_COLOURS[name]}{text}{_COLOURS['off']}" if self.colour else text


def _line(source: str | None, span: Span) -> str | None:
    if source is None:
        return None
    lines = source.split("\n", span.line)
    return lines[span.line - 1].rstrip("\r") if 0 < span.line <= len(lines) else None


def _window(line: str, span: Span, secret: bool) -> tuple[str, int]:
    """Return the visible part of a line, truncated around the caret, and the caret's column in it (from 0)."""
    column = span.column - 1
    start = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH)) if len(line) > _WIDTH else 0
    end = start + _WIDTH
    # Scan beyond the visible part: a credential may begin before the cut.
    far = max(0, start - _AROUND)
    if secret:
        line = line[:far] + redact(line[far:column]) + MASK
    else:
        line = line[:far] + redact(line[far : end + _AROUND]) + line[end + _AROUND :]
    before, after = ("…" if start else ""), ("…" if end < len(line) else "")
    return f"{before}{visible(line[start:end])}{after}", column - start + len(before)


def _columns(text: str) -> int:
    """Return the terminal width of a text: East Asian characters take two columns, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(ch) else 2 if east_asian_width(ch) in "WF" else 1 for ch in text)


def render_one(diagnostic: Diagnostic, source: SourceText, colour: bool = False) -> str:
    """Return one problem as several lines of text, without a trailing newline."""
    style = _Style(colour)
    d = diagnostic
    out = [f"{style(d.severity, f'{d.severity}[{d.id}]')}{style('bold', ': ' + visible(d.message))}"]
    out.append(f"{style('blue', '  -->')} {visible(str(d.span))}")
    line = _line(source(d.span.file), d.span)
    pad = " " * len(str(d.span.line))
    if line is not None:
        shown, column = _window(line, d.span, d.secret)
        width = min(d.span.end_column - d.span.column, len(shown) - column) if d.span.end_column else 1
        caret = "^" * max(1, _columns(shown[column : column + max(1, width)]))
        label = f" {visible(d.label)}" if d.label else ""
        out.append(f"{style('blue', f'{d.span.line} |')} {shown}".rstrip())
        out.append(f"{style('blue', f'{pad} |')} {' ' * _columns(shown[:column])}{style(d.severity, caret + label)}")
    for note in d.notes:
        place = visible(str(note.span))
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'note')}: {visible(note.text)} ({place})")
    if d.hint:
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'help')}: {visible(d.hint)}")
    return inert("\n".join(out))


_GROUPED = 4
"""Minimum number of equal problems of one file that are printed as one."""
_PLACES = 6
"""Maximum number of further lines named for a group."""
_DIGITS = re.compile("[0-9]+").sub


class _Group(NamedTuple):
    first: Diagnostic
    others: list[Diagnostic]


def _groups(diagnostics: Sequence[Diagnostic]) -> list[_Group]:
    """Collect the problems that a loop, a template or a copied mistake repeats.

    They have one code and remedy, and differ at most in numbers: at one place, or in one file.
    """
    same: dict[tuple[str, ...], list[Diagnostic]] = {}
    for d in diagnostics:
        same.setdefault((d.severity, d.id, d.span.file, _DIGITS("#", d.message), _DIGITS("#", d.hint)), []).append(d)
    found = []
    for d in diagnostics:
        key = (d.severity, d.id, d.span.file, _DIGITS("#", d.message), _DIGITS("#", d.hint))
        equal = same.get(key)
        if equal is None:
            continue  # in an earlier group
        one_place = len({each.span for each in equal}) == 1
        if len(equal) >= (2 if one_place else _GROUPED):
            del same[key]
            found.append(_Group(equal[0], equal[1:]))
        else:
            found.append(_Group(d, []))
    return found


def _repeated(group: _Group) -> str:
    """Return where else the problem of a group is: the numbers of the lines; "" if it is at the same place."""
    lines = sorted({d.span.line for d in group.others} - {group.first.span.line})
    more = f" and {len(lines) - _PLACES} more" if len(lines) > _PLACES else ""
    return f"also in line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:_PLACES]))}{more}" if lines else ""


def _render_group(group: _Group, source: SourceText, colour: bool) -> str:
    if not group.others:
        return render_one(group.first, source, colour)
    text = render_one(replace(group.first, message=f"{group.first.message} (×{1 + len(group.others)})"), source, colour)
    pad = " " * len(str(group.first.span.line))
    style = _Style(colour)
    places = _repeated(group)
    note = f"\n{style('blue', f'{pad} =')} {style('bold', 'note')}: {places}" if places else ""
    return text + note


def render_text(diagnostics: Sequence[Diagnostic], source: SourceText, colour: bool = False, cap: int = CAP) -> str:
    """Return all problems, separated by empty lines, with a count at the end."""
    groups = _groups(diagnostics)
    parts = [_render_group(group, source, colour) for group in groups[:cap]]
    if len(groups) > cap:
        parts.append(f"… and {sum(1 + len(group.others) for group in groups[cap:])} more")
    parts.append(summary(diagnostics))
    return "\n\n".join(parts) + "\n"


def summary(diagnostics: Iterable[Diagnostic]) -> str:
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
