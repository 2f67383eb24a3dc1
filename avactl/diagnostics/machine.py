"""Diagnostics for programs: JSON, SARIF, GitHub workflow commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import orjson

from avactl.diagnostics.codes import CODES
from avactl.diagnostics.model import Diagnostic


def _text(file: str) -> str:
    """The name of a file as text, also where it is not UTF-8 on disk."""
    return file.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """A list of `{code, severity, file, line, column, message, hint}`; `notes` where other places belong to it."""
    entries: list[dict[str, Any]] = []
    for d in diagnostics:
        entry: dict[str, Any] = {
            "code": d.code,
            "severity": d.severity,
            "file": _text(d.span.file),
            "line": d.span.line,
            "column": d.span.column,
            "message": d.message,
            "hint": d.hint,
        }
        if d.notes:
            entry["notes"] = [
                {"file": _text(n.span.file), "line": n.span.line, "column": n.span.column, "message": n.text}
                for n in d.notes
            ]
        entries.append(entry)
    return orjson.dumps(entries, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _location(span: Any) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": span.line, "startColumn": span.column}
    if span.end_column:
        region["endColumn"] = span.end_column
    uri = quote(span.file.encode("utf-8", "surrogateescape"), safe="/<>")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def render_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    """SARIF 2.1.0, as GitHub code scanning and editors read it. Columns count Unicode code points."""
    used = sorted({d.code for d in diagnostics})
    results = []
    for d in diagnostics:
        text = d.message + (f" ({d.hint})" if d.hint else "")
        result: dict[str, Any] = {
            "ruleId": d.code,
            "ruleIndex": used.index(d.code),
            "level": d.severity,
            "message": {"text": text},
            "locations": [_location(d.span)],
        }
        if d.notes:
            result["relatedLocations"] = [
                {"id": i, **_location(n.span), "message": {"text": n.text}} for i, n in enumerate(d.notes)
            ]
        results.append(result)
    run = {
        "tool": {
            "driver": {
                "name": "avactl",
                "rules": [{"id": code, "shortDescription": {"text": CODES.get(code, code)}} for code in used],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return orjson.dumps(log, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _data(text: str) -> str:
    text = "".join(ch if ch.isprintable() or ch in "\r\n" else "\ufffd" for ch in text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """GitHub Actions workflow commands: one annotation a problem, on its line."""
    lines = []
    for d in diagnostics:
        place = f"file={_property(_text(d.span.file))},line={d.span.line},col={d.span.column}"
        if d.span.end_column:
            place += f",endColumn={d.span.end_column}"
        text = d.message + (f" – {d.hint}" if d.hint else "")
        lines.append(f"::{d.severity} {place},title={_property(d.code)}::{_data(text)}\n")
    return "".join(lines)
