"""Every spec of a small platform taken away, or broken, one after the other: there is always a diff, and it prints."""

from __future__ import annotations

import pytest

from avactl.change.diff import compare
from avactl.change.diff.json_output import render_json
from avactl.change.diff.markdown import render_markdown
from avactl.change.diff.text import render_text
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.diff.test_golden import BASE

DOCUMENTS = [(name, index) for name, text in BASE.items() for index in range(len(text.split("\n---\n")))]


def repository(name: str, index: int, new: str | None) -> Compilation:
    """The platform with another text in place of one document, or without it."""
    parts = BASE[name].rstrip("\n").split("\n---\n")
    if new is None:
        del parts[index]
    else:
        parts[index] = parts[index].replace("kind: ", f"{new}\nkind: ", 1)
    files = {**BASE, name: "\n---\n".join(parts) + "\n"}
    return compile_tree(MemoryTree({path: text for path, text in files.items() if text.strip()}))


NEEDED = {*(("platform.yaml", index) for index in range(5)), ("speech.yaml", 0), ("vision.yaml", 0)}
"""Documents that others refer to: the platform, and the teams."""


@pytest.mark.parametrize(("name", "index"), DOCUMENTS)
def test_one_spec_is_broken_in_the_base_or_missing(name: str, index: int) -> None:
    whole = compile_tree(MemoryTree(BASE))
    broken, without = repository(name, index, "wrong: key"), repository(name, index, None)
    assert not broken.ok
    diffs = [compare(broken, whole), compare(without, whole)]
    assert diffs[0].base_problems
    assert without.ok == ((name, index) not in NEEDED)
    if without.ok:
        gone = compare(whole, without)
        assert any(intent.op == "removed" for intent in gone.intents)
        diffs.append(gone)
    for diff in diffs:
        assert not diff.empty
        assert render_text(diff)
        assert len(render_markdown(diff).encode()) < 65_536
        assert render_json(diff)
