"""Machine-readable diagnostics: JSON and SARIF. Forges have formats of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from avactl.base.terminal import json_output
from avactl.diagnostics.codes import CODES
from avactl.diagnostics.model import Diagnostic, Span


def file_text(file: str) -> str:
    """Return a file's name as text, even if it is not UTF-8 on disk."""
    return file.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a list of `{code, severity, file, line, column, message, hint}`, with `notes` for related places."""
    return json_output(json_data(diagnostics))


def json_data(diagnostics: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    """Return the list of `render_json` as data."""
    entries: list[dict[str, Any]] = []
    for d in diagnostics:
        entry = {"code": d.code, "severity": d.severity, **_place_data(d.span), "message": d.message, "hint": d.hint}
        if d.rule:
            entry["rule"] = d.rule
        if d.notes:
            entry["notes"] = [{**_place_data(note.span), "message": note.text} for note in d.notes]
        entries.append(entry)
    return entries


def _place_data(span: Span) -> dict[str, Any]:
    return {"file": file_text(span.file), "line": span.line, "column": span.column}


def _code_meaning(id: str) -> str:
    code, _, rule = id.partition("/")
    return f"{CODES.get(code, code)}" + (f" Its name is {rule}." if rule else "")


def _location_data(span: Span) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": span.line, "startColumn": span.column}
    if span.end_column:
        region["endColumn"] = span.end_column
    uri = quote(span.file.encode("utf-8", "surrogateescape"), safe="/")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def render_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    """Return SARIF 2.1.0 for code scanning and editors. Columns count Unicode code points."""
    used = sorted({d.id for d in diagnostics})
    results = []
    for d in diagnostics:
        text = d.message + (f" ({d.hint})" if d.hint else "")
        result: dict[str, Any] = {
            "ruleId": d.id,
            "ruleIndex": used.index(d.id),
            "level": d.severity,
            "message": {"text": text},
            "locations": [_location_data(d.span)],
        }
        if d.notes:
            result["relatedLocations"] = [
                {"id": i, **_location_data(n.span), "message": {"text": n.text}} for i, n in enumerate(d.notes)
            ]
        results.append(result)
    rules = [{"id": id, "shortDescription": {"text": _code_meaning(id)}} for id in used]
    tool = {"driver": {"name": "avactl", "rules": rules}}
    run = {"tool": tool, "columnKind": "unicodeCodePoints", "results": results}
    return json_output({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]})
