"""Every mistake of the table is reported at its place, with the remedy. The table was written before the checks."""

from __future__ import annotations

import pytest

from tests.mistakes.table import Mistake, mistakes

MISTAKES = mistakes()


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.title)
def test_mistake(case: Mistake) -> None:
    shortfall = case.shortfall()
    assert not shortfall, shortfall


def test_there_are_a_hundred() -> None:
    assert len({case.title for case in MISTAKES}) == len(MISTAKES) >= 100
