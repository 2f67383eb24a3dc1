"""Credentials are seen in every field, and told once."""

from __future__ import annotations

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics.machine import render_json, render_sarif
from avactl.diagnostics.text import render_text
from avactl.forges.github.annotations import render_annotations
from avactl.spec.repository.tree import MemoryTree

SHAPES = [
    *("AKIAIOSFODNN7EXAMPLE", "LTAI" + "a1" * 8, "AIza" + "a" * 35, "ya29." + "a" * 20, "ghr_" + "a" * 20),
    *("github_pat_" + "a" * 22, "glpat-" + "a" * 20, "hf_" + "a" * 20, "sk-" + "a" * 20, "nvapi-" + "a" * 20),
    *("xoxb-" + "a" * 10, "npm_" + "a" * 36, "pypi-" + "a" * 50, "dckr_pat_" + "a" * 20, "https://a:b@example.com"),
    *("eyJ" + "a" * 10 + ".eyJ" + "a" * 10 + ".x", "-----BEGIN RSA PRIVATE KEY-----"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("field", ["annotations: {note: %s}", "labels: {%s: x}"])
def test_whatever_field_it_stands_in(field: str, shape: str) -> None:
    line = "metadata: {name: a, " + field % f"'{shape}'" + "}"
    files = {"a.yaml": f"apiVersion: avactl.dev/v1\nkind: Cluster\n{line}\n"}
    result = compile_tree(MemoryTree(files))
    assert not result.ok
    assert len(result.diagnostics) == 1
    found = result.diagnostics
    for text in (render_text(found, files.get), render_json(found), render_sarif(found), render_annotations(found)):
        assert shape not in text
