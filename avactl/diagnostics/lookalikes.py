"""Characters that look like others, or like nothing: pasted from documents, typed with another keyboard layout."""

from __future__ import annotations

import re
from typing import NamedTuple
from unicodedata import name, normalize

LOOK_ALIKES = str.maketrans(
    "авеікмнорстухѕјԁһԛԝοανικρτυχАВЕІКМНОРСТУХЅЈҺԚԜΟΑΒΕΖΗΙΚΜΝΡΤΥΧ",
    "abeikmhopctyxsjdhqwoavikptuxABEIKMHOPCTYXSJhQWOABEZHIKMNPTYX",
)
"""Cyrillic and Greek letters, and the Latin ones that they look like."""
_INVISIBLE = "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
_SPACES = "\u00a0\u2000-\u200a\u202f\u3000"
_DASHES = "\u2010-\u2015\u2212"
find_odd_space = re.compile(f"[\u200b\u2060\ufeff{_SPACES}]").search
"""Finds a character that looks like a space, or like nothing, and is text in YAML."""
_find_odd = re.compile(f"[{_INVISIBLE}{_SPACES}]").search
_remove_invisible = re.compile(f"[{_INVISIBLE}]").sub
_as_space = re.compile(f"[{_SPACES}]").sub
_as_dash = re.compile(f"[{_DASHES}]").sub
_words = re.compile(r"[^\W\d_]+").findall  # digits and `_` are of every alphabet


class OddText(NamedTuple):
    """A text with such characters."""

    plain: str
    """The text as it was probably meant."""
    reason: str
    """A clause that names its first odd character."""


def describe_character(character: str) -> str:
    """Return a clause: "`о` is U+043E, cyrillic small letter o", or "it has U+200B, zero width space"."""
    code = f"U+{ord(character):04X}{f', {known.lower()}' if (known := name(character, '')) else ''}"
    return f"`{character}` is {code}" if character.isalnum() else f"it has {code}"


def meant_text(text: str) -> OddText | None:
    """Return what a text that must be ASCII meant, such as a refused name; None if it is ASCII or in another script."""
    if text.isascii():
        return None
    plain = normalize("NFKC", _as_dash("-", _as_space(" ", _remove_invisible("", text)))).translate(LOOK_ALIKES)
    if not plain.isascii() or not plain.strip():
        return None
    return OddText(plain.strip(), describe_character(next(each for each in text if not each.isascii())))


def mixed_text(text: str) -> OddText | None:
    """Return what a word meant that mixes two alphabets, or has invisible characters; None for all others."""
    if text.isascii():
        return None
    odd = _find_odd(text)
    mixed = odd[0] if odd is not None else next(filter(None, map(_foreign_letter, _words(text))), "")
    if not mixed:
        return None
    plain = _as_space(" ", _remove_invisible("", text)).translate(LOOK_ALIKES).strip()
    return OddText(plain, describe_character(mixed))


def _foreign_letter(word: str) -> str:
    """Return the first letter of another alphabet in a word that is Latin without its look-alikes; "" without one."""
    if word.isascii() or not word.translate(LOOK_ALIKES).isascii() or not any(each.isascii() for each in word):
        return ""
    return next(each for each in word if not each.isascii())
