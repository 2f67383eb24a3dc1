"""Comments as reviewers see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.review.scenarios import CASES, HERE, case_sides, comment_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_comment(case: Path, golden: Callable[[Path, str], None]) -> None:
    golden(case / "comment.md", comment_of(case_sides(case)))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 20


def test_the_comment_in_the_docs_is_one_of_them() -> None:
    text = (HERE.parent.parent.parent / "docs/pull-requests.md").read_text(encoding="utf-8")
    shown = [line.removeprefix(">").removeprefix(" ") for line in text.splitlines() if line.startswith(">")]
    expected = (HERE / "scale-a-job/comment.md").read_text(encoding="utf-8").splitlines()[1:-1]
    notes = ("<sub>", "*fits: ")
    assert [line for line in shown if line and not line.startswith(notes)] == [
        line for line in expected if line and not line.startswith(notes)
    ]
