"""Diagnostics for people: the line, a caret, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from avactl.diagnostics.model import Diagnostic, Span
from avactl.diagnostics.secrets import MASK, redact

SourceText = Callable[[str], str | None]
"""Text of a file by its path; None where there is none."""

CAP = 200
"""Most problems that are printed; the rest is counted."""

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "bold": "\x1b[1m", "blue": "\x1b[1;34m", "off": "\x1b[0m"}
_WIDTH = 160


class _Style:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, name: str, text: str) -> str:
        return f"{_COLOURS[name]}{text}{_COLOURS['off']}" if self.colour else text


def _visible(text: str) -> str:
    """Text without control characters, each still one column wide, so that the caret stands right."""
    return "".join(ch if ch.isprintable() else " " if ch == "\t" else "�" for ch in text)


def _line(source: str | None, span: Span) -> str | None:
    if source is None:
        return None
    lines = source.split("\n")
    return lines[span.line - 1].rstrip("\r") if 0 < span.line <= len(lines) else None


def _window(line: str, span: Span) -> tuple[str, int]:
    """A long line cut around the caret, and the caret's column in what is left (from 0)."""
    column = span.column - 1
    if len(line) <= _WIDTH:
        return line, column
    start = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
    end = start + _WIDTH
    before, after = ("…" if start else ""), ("…" if end < len(line) else "")
    return f"{before}{line[start:end]}{after}", column - start + len(before)


def render_one(diagnostic: Diagnostic, source: SourceText, colour: bool = False) -> str:
    """One problem as text of several lines, without a line end behind the last."""
    style = _Style(colour)
    d = diagnostic
    out = [f"{style(d.severity, f'{d.severity}[{d.code}]')}{style('bold', ': ' + _visible(d.message))}"]
    out.append(f"{style('blue', '  -->')} {_visible(str(d.span))}")
    line = _line(source(d.span.file), d.span)
    if line is not None:
        line = line[: d.span.column - 1] + MASK if d.secret else redact(line)
    pad = " " * len(str(d.span.line))
    if line is not None:
        shown, column = _window(_visible(line), d.span)
        width = max(1, min(d.span.end_column - d.span.column, len(shown) - column)) if d.span.end_column else 1
        label = f" {_visible(d.label)}" if d.label else ""
        out.append(f"{style('blue', f'{d.span.line} |')} {shown}".rstrip())
        out.append(f"{style('blue', f'{pad} |')} {' ' * column}{style(d.severity, '^' * width + label)}")
    for note in d.notes:
        place = _visible(str(note.span))
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'note')}: {_visible(note.text)} ({place})")
    if d.hint:
        out.append(f"{style('blue', f'{pad} =')} {style('bold', 'help')}: {_visible(d.hint)}")
    return "\n".join(out)


def render_text(diagnostics: Sequence[Diagnostic], source: SourceText, colour: bool = False, cap: int = CAP) -> str:
    """All problems, an empty line between them, with a closing count."""
    parts = [render_one(d, source, colour) for d in diagnostics[:cap]]
    if len(diagnostics) > cap:
        parts.append(f"… and {len(diagnostics) - cap} more")
    parts.append(summary(diagnostics))
    return "\n\n".join(parts) + "\n"


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`."""
    counts = {"error": 0, "warning": 0}
    for d in diagnostics:
        counts[d.severity] += 1
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items() if n]
    return ", ".join(parts) or "no problems"
