"""Resource quantities of Kubernetes as whole numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_LENGTH, _EXPONENT = 64, 40
"""Characters of a quantity, and its largest power of ten: what follows is arithmetic without bounds."""
MOST = 2**53
"""The largest amount of a resource that is told from larger ones (8 PiB, 9 million million CPUs): sums over the pods of
a node stay within 64 bits."""
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(m|u|n|k|[MGTPE]|[KMGTPE]i)?)").fullmatch
_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=65_536)
def whole(text: str | int, unit: int = 1) -> int:
    """A quantity times `unit`, rounded up as Kubernetes rounds: `whole("500m", 1000)` is 500.

    Raises ValueError where it is none. Source: k8s.io/apimachinery/pkg/api/resource.
    """
    given = str(text)
    match = _QUANTITY(given) if len(given) <= _LENGTH else None
    if match is None:
        raise ValueError(f"not a quantity: {given[:_LENGTH]!r}")
    number, exponent, suffix = match.groups()
    if exponent and (len(exponent) > 5 or abs(int(exponent[1:])) > _EXPONENT):
        raise ValueError(f"not a quantity within 1e-{_EXPONENT} and 1e{_EXPONENT}: {given!r}")
    value = Fraction(number + (exponent or "")) * _SUFFIX[suffix or ""] * unit
    return -(-value.numerator // value.denominator)


def amount(name: str, text: str | int) -> int:
    """Return an amount of a resource: CPU in millicores, everything else in its own unit; at most `MOST`."""
    return min(whole(text, 1000 if name == "cpu" else 1), MOST)
