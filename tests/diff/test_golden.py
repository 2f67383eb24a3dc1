"""Whole diffs as a reviewer sees them.

A case is a directory of tests/golden/diff with `edit.yaml`: what is changed in the files of `base`. An entry with `old`
and `new` replaces a text wherever it stands in the file, one with only `new` makes the file, one with neither removes
it. Beside it stand the diff as text, markdown and JSON.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.change.diff import compare
from avactl.change.diff.json_output import render_json
from avactl.change.diff.markdown import render_markdown
from avactl.change.diff.text import render_text
from avactl.compiler import compile_tree
from avactl.diagnostics.text import render_text as render_problems
from avactl.spec.repository.tree import MemoryTree
from tests.diff.sides import Golden, edited

HERE = Path(__file__).parent.parent / "golden" / "diff"
BASE = {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / "base").iterdir())}
CASES = sorted(path.parent for path in HERE.glob("*/edit.yaml"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Path, golden: Golden) -> None:
    files = edited(BASE, case / "edit.yaml")
    base, head = compile_tree(MemoryTree(BASE)), compile_tree(MemoryTree(files))
    for side in (base, head):
        assert side.ok, render_problems(side.diagnostics, files.get)
    diff = compare(base, head)
    golden(case / "diff.txt", render_text(diff))
    golden(case / "diff.md", render_markdown(diff))
    golden(case / "diff.json", render_json(diff))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 12
