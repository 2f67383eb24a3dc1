"""Comments as reviewers see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.review.scenarios import CASES, case_sides, comment_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_comment(case: Path, golden: Callable[[Path, str], None]) -> None:
    golden(case / "comment.md", comment_of(case_sides(case)))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 20
