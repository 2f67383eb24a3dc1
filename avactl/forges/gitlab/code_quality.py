"""Problems as a code quality report of GitLab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from avactl.base.terminal import json_output
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.machine import file_text


def render_code_quality(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a code quality report: `artifacts: {reports: {codequality: FILE}}`.

    GitLab compares reports by fingerprint, so a fingerprint must not depend on line numbers.
    """
    seen = Counter[str]()
    entries = []
    for d in diagnostics:
        path = file_text(d.span.file)
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
