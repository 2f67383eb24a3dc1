"""Machine-readable diagnostics: JSON, SARIF, GitHub workflow commands, GitLab code quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from avactl.base.terminal import inert, json_output
from avactl.diagnostics.codes import CODES
from avactl.diagnostics.model import Diagnostic, Span


def _text(file: str) -> str:
    """Return a file's name as text, even if it is not UTF-8 on disk."""
    return file.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a list of `{code, severity, file, line, column, message, hint}`, with `notes` for related places."""
    return json_output(json_data(diagnostics))


def json_data(diagnostics: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    """Return the list of `render_json` as data."""
    entries: list[dict[str, Any]] = []
    for d in diagnostics:
        entry = {"code": d.code, "severity": d.severity, **_place(d.span), "message": d.message, "hint": d.hint}
        if d.rule:
            entry["rule"] = d.rule
        if d.notes:
            entry["notes"] = [{**_place(note.span), "message": note.text} for note in d.notes]
        entries.append(entry)
    return entries


def _place(span: Span) -> dict[str, Any]:
    return {"file": _text(span.file), "line": span.line, "column": span.column}


def _meaning(id: str) -> str:
    code, _, rule = id.partition("/")
    return f"{CODES.get(code, code)}" + (f" Its name is {rule}." if rule else "")


def _location(span: Span) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": span.line, "startColumn": span.column}
    if span.end_column:
        region["endColumn"] = span.end_column
    uri = quote(span.file.encode("utf-8", "surrogateescape"), safe="/")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def render_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    """Return SARIF 2.1.0 for GitHub code scanning and editors. Columns count Unicode code points."""
    used = sorted({d.id for d in diagnostics})
    results = []
    for d in diagnostics:
        text = d.message + (f" ({d.hint})" if d.hint else "")
        result: dict[str, Any] = {
            "ruleId": d.id,
            "ruleIndex": used.index(d.id),
            "level": d.severity,
            "message": {"text": text},
            "locations": [_location(d.span)],
        }
        if d.notes:
            result["relatedLocations"] = [
                {"id": i, **_location(n.span), "message": {"text": n.text}} for i, n in enumerate(d.notes)
            ]
        results.append(result)
    rules = [{"id": id, "shortDescription": {"text": _meaning(id)}} for id in used]
    tool = {"driver": {"name": "avactl", "rules": rules}}
    run = {"tool": tool, "columnKind": "unicodeCodePoints", "results": results}
    return json_output({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]})


def _data(text: str) -> str:
    text = "".join(ch if ch.isprintable() or ch in "\r\n" else "\ufffd" for ch in text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_ANNOTATIONS = 10
"""Maximum number of annotations that GitHub shows per level and step; it silently drops the rest."""


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """Return GitHub Actions workflow commands: one annotation per problem; excess problems go to the log."""
    lines, rest = [], []
    totals, shown = Counter(d.severity for d in diagnostics), Counter[str]()
    for d in diagnostics:
        shown[d.severity] += 1
        if totals[d.severity] > _ANNOTATIONS and shown[d.severity] >= _ANNOTATIONS:
            rest.append(d)
            continue
        place = f"file={_property(_text(d.span.file))},line={d.span.line},col={d.span.column}"
        if d.span.end_column:
            place += f",endColumn={d.span.end_column}"
        text = d.message + (f" – {d.hint}" if d.hint else "")
        lines.append(f"::{d.severity} {place},title={_property(d.id)}::{_data(text)}\n")
    for severity, count in Counter(d.severity for d in rest).items():
        what = f"{severity}{'' if count == 1 else 's'}"
        lines.append(f"::{severity} title=avactl::{count} more {what}: the log of this step has them\n")
    for d in rest:
        lines.append(inert(_data(f"{d.severity}[{d.id}] {_text(str(d.span))}: {d.message}")) + "\n")
    return "".join(lines)


def render_gitlab(diagnostics: Sequence[Diagnostic]) -> str:
    """Return GitLab's code quality report: `artifacts: {reports: {codequality: FILE}}`.

    GitLab compares reports by fingerprint, so a fingerprint must not depend on line numbers.
    """
    seen = Counter[str]()
    entries = []
    for d in diagnostics:
        path = _text(d.span.file)
        same = f"{d.id}\0{path}\0{d.message}"
        seen[same] += 1
        entry = {
            "description": d.message + (f" – {d.hint}" if d.hint else ""),
            "check_name": d.id,
            "fingerprint": sha256(f"{same}\0{seen[same]}".encode()).hexdigest(),
            "severity": "major" if d.severity == "error" else "minor",
            "location": {"path": path, "lines": {"begin": d.span.line}},
        }
        entries.append(entry)
    return json_output(entries)
