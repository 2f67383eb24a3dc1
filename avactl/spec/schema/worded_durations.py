"""Durations as people write them: `2 hours`, `15min`, `1.5h`, `1-12:00:00`."""

from __future__ import annotations

import re
from fractions import Fraction

_SECONDS: dict[str, int | Fraction] = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1, "ms": Fraction(1, 1000)}
_UNIT_WORDS = {
    "week": "w",
    "wk": "w",
    "day": "d",
    "hour": "h",
    "hr": "h",
    "minute": "m",
    "min": "m",
    "second": "s",
    "sec": "s",
    "millisecond": "ms",
    "msec": "ms",
}
_DURATION_PART = re.compile(r"([0-9]{1,12})(?:\.([0-9]))?\s*([a-z]{1,12}?)s?(?=[\s,0-9]|$)").findall
_BARE_END = re.compile(r"((?:[0-9]{1,12}[dhm])*[0-9]{1,12}([dhm])[0-9]{1,12})").fullmatch
_UNITS_BY_SIZE = ("d", "h", "m", "s", "ms")


_CLOCK_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])").fullmatch
"""Slurm's format of times: `[DAYS-]HOURS:MINUTES:SECONDS`."""


def plain_duration(value: str) -> str:
    """Return the duration of a spec that such a text means; "" if that is unclear."""
    if clock := _CLOCK_TIME(value):
        return "".join(f"{int(n)}{unit}" for n, unit in zip(clock.groups(), "dhms", strict=True) if n and int(n))
    if bare := _BARE_END(value.strip().lower()):
        value = bare[1] + _UNITS_BY_SIZE[_UNITS_BY_SIZE.index(bare[2]) + 1]  # `1h30` is 1h30m
    text = ""
    for whole, tenths, word in _DURATION_PART(value.lower()):
        unit = _UNIT_WORDS.get(word, word)
        length = Fraction(f"{whole}.{tenths or 0}") * Fraction(_SECONDS.get(unit, 0))
        if not length:
            return ""
        unit = "d" if unit == "w" else unit
        unit = next(
            each for each in _UNITS_BY_SIZE[_UNITS_BY_SIZE.index(unit) :] if (length / _SECONDS[each]).denominator == 1
        )
        text += f"{length / _SECONDS[unit]}{unit}"
    return text
