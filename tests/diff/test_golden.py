"""Whole diffs as a reviewer sees them.

A case is a directory of tests/golden/diff with `edit.yaml`: what is changed in the files of `base`. An entry with `old`
and `new` replaces a text wherever it stands in the file, one with only `new` makes the file, one with neither removes
it. Beside it stand the diff as text, markdown and JSON.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from avactl.compiler import compile_tree
from avactl.diagnostics.text import render_text as render_problems
from avactl.diff import compare
from avactl.diff.machine import render_json
from avactl.diff.markdown import render_markdown
from avactl.diff.text import render_text
from avactl.source.tree import MemoryTree
from tests.diff.sides import Golden

HERE = Path(__file__).parent.parent / "golden" / "diff"
BASE = {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / "base").iterdir())}
CASES = sorted(path.parent for path in HERE.glob("*/edit.yaml"))


def edited(case: Path) -> dict[str, str]:
    """The files of the head."""
    files = dict(BASE)
    for edit in yaml.safe_load((case / "edit.yaml").read_text(encoding="utf-8")):
        name = edit["file"]
        if "old" in edit:
            assert edit["old"] in files[name], f"{name} has no {edit['old']!r}"
            files[name] = files[name].replace(edit["old"], edit["new"])
        elif "new" in edit:
            files[name] = edit["new"]
        else:
            del files[name]
    return files


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case: Path, golden: Golden) -> None:
    files = edited(case)
    base, head = compile_tree(MemoryTree(BASE)), compile_tree(MemoryTree(files))
    for side in (base, head):
        assert side.ok, render_problems(side.diagnostics, files.get)
    diff = compare(base, head)
    golden(case / "diff.txt", render_text(diff))
    golden(case / "diff.md", render_markdown(diff))
    golden(case / "diff.json", render_json(diff))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 12
