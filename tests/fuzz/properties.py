"""What holds of every input, however bad."""

from __future__ import annotations

import time
from collections.abc import Mapping

import orjson

from avactl.compiler import compile_tree
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.codes import CODES
from avactl.diagnostics.machine import render_json, render_sarif
from avactl.diagnostics.text import render_text
from avactl.forges.github.annotations import render_annotations
from avactl.forges.gitlab.code_quality import render_code_quality
from avactl.spec.repository.tree import MemoryTree

ENDLESS = 60.0
"""Seconds of CPU time after which a compile of such small files has, as good as, no end: others take milliseconds."""


def check(files: Mapping[str, bytes]) -> None:
    """Compile; the result must be whole, come to an end, and every problem must point into a file."""
    tree = MemoryTree(files)
    began = time.process_time()
    result = compile_tree(tree)
    took = time.process_time() - began
    assert took < ENDLESS, f"{took:.1f} s"
    texts = {path: data.decode("utf-8-sig", "replace") for path, data in files.items()}
    for problem in result.diagnostics:
        _check_problem(problem, texts)
    rendered = render_text(result.diagnostics, texts.get)
    rendered.encode()
    render_text(result.diagnostics, texts.get, colour=True)
    render_json(result.diagnostics).encode()
    render_sarif(result.diagnostics).encode()
    render_annotations(result.diagnostics).encode()
    render_code_quality(result.diagnostics).encode()
    if not result.ok:
        assert result.manifests == ()
    for manifest in result.manifests:
        orjson.dumps(manifest.body)


def _check_problem(problem: Diagnostic, texts: Mapping[str, str]) -> None:
    assert problem.code in CODES, problem
    assert problem.code != "internal-error", problem
    assert problem.severity in ("error", "warning"), problem
    assert problem.message, problem
    if problem.code == "no-specs":
        return
    for span in (problem.span, *(note.span for note in problem.notes)):
        _check_span(problem, span, texts)


def _check_span(problem: Diagnostic, span: Span, texts: Mapping[str, str]) -> None:
    assert span.file in texts, problem
    lines = texts[span.file].split("\n")
    assert 1 <= span.line <= len(lines), problem
    width = len(lines[span.line - 1])
    assert 1 <= span.column <= width + 1, (problem, lines[span.line - 1])
    assert span.end_column == 0 or span.column < span.end_column <= width + 1, (problem, lines[span.line - 1])
