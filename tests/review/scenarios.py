"""The pull requests of tests/golden/pull-requests: a shared repository, and what each of them changes in it.

A case is a directory with `edit.yaml`: an entry with `old` and `new` replaces a text wherever it stands in the file,
one with only `new` makes the file, one with neither removes it. `before.yaml`, where it is there, is done to the base
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from avactl.change.review.comment import compose
from avactl.change.review.comparison import LOWERING, SectionOf, Sides, review_of
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.diff.sides import edited

HERE = Path(__file__).parent.parent / "golden" / "pull-requests"
BASE = {
    path.relative_to(HERE / "base").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((HERE / "base").rglob("*.*"))
}
CASES = sorted(path.parent for path in HERE.glob("*/edit.yaml"))


def sides_of(base: dict[str, str], head: dict[str, str], sections: Sequence[SectionOf] = ()) -> Sides:
    """Two sets of files, compiled and compared."""
    before, after = compiled(base), compiled(head)
    return Sides(review_of(before, after, "1111111", "2222222", sections), after, ".")


def compiled(files: dict[str, str]) -> Compilation:
    return compile_tree(MemoryTree(files), LOWERING)


def case_sides(case: Path) -> Sides:
    base = edited(BASE, case / "before.yaml")
    return sides_of(base, edited(base, case / "edit.yaml"))


def comment_of(sides: Sides, limit: int = 65_000) -> str:
    return compose(sides.review, sides.identity, sides.source, limit=limit)
