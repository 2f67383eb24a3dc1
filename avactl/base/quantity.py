"""Resource quantities of Kubernetes as exact numbers. Source: k8s.io/apimachinery/pkg/api/resource."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from avactl.base.terminal import shorten_middle

_LENGTH, _EXPONENT = 64, 40
"""Maximum characters of a quantity, and its maximum power of ten, which bound the cost of arithmetic."""
MOST = 2**53
"""Upper bound of an amount (8 PiB, 9 trillion CPUs): larger ones are clamped, so that sums over a node's pods stay
within 64 bits."""
_PARSE_QUANTITY = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(m|u|n|k|[MGTPE]|[KMGTPE]i)?)", re.ASCII
).fullmatch
_SUFFIX_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096, typed=True)
def parse_quantity(value: str | int | float) -> Fraction:
    """Return a quantity as an exact number: `500m` → 1/2, `1Ki` → 1024.

    Raises ValueError on anything else, on more than 64 characters, and on exponents beyond 40.
    """
    text = str(value)
    match = _PARSE_QUANTITY(text) if len(text) <= _LENGTH else None
    if match is None:
        raise ValueError(f"not a quantity: {shorten_middle(text, _LENGTH)!r}")
    number, exponent, suffix = match.groups()
    if exponent and (len(exponent) > 5 or abs(int(exponent[1:])) > _EXPONENT):
        raise ValueError(f"not a quantity within 1e-{_EXPONENT} and 1e{_EXPONENT}: {text!r}")
    return Fraction(number + (exponent or "")) * _SUFFIX_FACTORS[suffix or ""]


@lru_cache(maxsize=65_536, typed=True)
def whole_units(value: str | int, unit: int = 1) -> int:
    """Return a quantity times `unit`, rounded up as Kubernetes rounds: `whole("500m", 1000)` is 500.

    Raises ValueError as `quantity` does.
    """
    exact = parse_quantity(value) * unit
    return -(-exact.numerator // exact.denominator)


def resource_amount(name: str, value: str | int) -> int:
    """Return an amount of a resource: CPU in millicores, everything else in its own unit; at most `MOST`."""
    return min(whole_units(value, 1000 if name == "cpu" else 1), MOST)


def format_quantity(value: Fraction | int) -> str:
    """Return the shortest exact quantity with a binary suffix, or in milli: 1073741824 → `1Gi`, 1/2 → `500m`."""
    fraction = Fraction(value)
    if fraction.denominator != 1:
        return f"{-(-fraction.numerator * 1000 // fraction.denominator)}m"
    number = fraction.numerator
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = _SUFFIX_FACTORS[suffix].numerator
        if number and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)
