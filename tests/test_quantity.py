"""Quantities: every notation of Kubernetes, within bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from avactl.base.quantity import format_quantity, parse_quantity, whole_units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", Fraction(1, 2)),
        ("1Ki", 1024),
        ("1k", 1000),
        ("1.5Gi", 3 << 29),
        (".5", Fraction(1, 2)),
        ("2.", 2),
        ("-1", -1),
        ("+3M", 3_000_000),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1E", 10**18),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
        (4, 4),
        (0.5, Fraction(1, 2)),
    ],
)
def test_notations(text: str | float, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "1 Gi", "1GB", "Gi", "1e", "0x1", "1_0", "٣", "1e41", "9" * 65, "nan", "--1", True]
)
def test_anything_else_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


def test_amounts_are_rounded_up_and_written_short() -> None:
    assert (whole_units("1n", 1000), whole_units("-1n", 1000), whole_units("500m", 1000)) == (1, 0, 500)
    assert [format_quantity(each) for each in (0, 1 << 30, 1536 << 20, 1000, Fraction(1, 3))] == [
        "0",
        "1Gi",
        "1536Mi",
        "1000",
        "334m",
    ]
