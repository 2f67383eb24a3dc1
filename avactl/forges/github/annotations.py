"""Problems as annotations of GitHub Actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from avactl.base.terminal import inert_text
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.machine import file_text

_MAX_ANNOTATIONS = 10
"""Maximum number of annotations that GitHub shows per level and step; it silently drops the rest."""


def _data(text: str) -> str:
    text = "".join(ch if ch.isprintable() or ch in "\r\n" else "\ufffd" for ch in text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_annotations(diagnostics: Sequence[Diagnostic]) -> str:
    """Return workflow commands: one annotation per problem; excess problems go to the log."""
    lines, rest = [], []
    totals, shown = Counter(d.severity for d in diagnostics), Counter[str]()
    for d in diagnostics:
        shown[d.severity] += 1
        if totals[d.severity] > _MAX_ANNOTATIONS and shown[d.severity] >= _MAX_ANNOTATIONS:
            rest.append(d)
            continue
        place = f"file={_property(file_text(d.span.file))},line={d.span.line},col={d.span.column}"
        if d.span.end_column:
            place += f",endColumn={d.span.end_column}"
        text = d.message + (f" – {d.hint}" if d.hint else "")
        lines.append(f"::{d.severity} {place},title={_property(d.id)}::{_data(text)}\n")
    for severity, count in Counter(d.severity for d in rest).items():
        what = f"{severity}{'' if count == 1 else 's'}"
        lines.append(f"::{severity} title=avactl::{count} more {what}: the log of this step has them\n")
    for d in rest:
        lines.append(inert_text(_data(f"{d.severity}[{d.id}] {file_text(str(d.span))}: {d.message}")) + "\n")
    return "".join(lines)
