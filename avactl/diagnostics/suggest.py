"""Suggestions for misspelt words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def _fold_word(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the closest known word, ignoring case, `_` and `-`; None if nothing is close."""
    candidates = list(known)
    folded = _fold_word(word)
    for candidate in candidates:
        if _fold_word(candidate) == folded:
            return candidate
    by_fold = {_fold_word(candidate): candidate for candidate in candidates}
    near = difflib.get_close_matches(folded, by_fold, n=1, cutoff=0.6)
    if near:
        return by_fold[near[0]]
    if len(folded) < 3:
        return None
    starts = [c for c in candidates if _fold_word(c).startswith(folded) or folded.startswith(_fold_word(c))]
    return starts[0] if len(starts) == 1 else None


def one_of(words: Iterable[str], limit: int = 12) -> str:
    """Format `a`, `b` or `c`; a long list is truncated."""
    quoted = [f"`{word}`" for word in dict.fromkeys(words)]
    if not quoted:
        return "nothing"
    if len(quoted) > limit:
        return ", ".join(quoted[:limit]) + f", … ({len(quoted)} in all)"
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def did_you_mean(word: str, known: Iterable[str], what: str = "known") -> str:
    """Return the hint for an unknown word: the closest known word, else the list."""
    candidates = sorted(known)
    near = closest_word(word, candidates)
    if near is not None:
        return f"did you mean `{near}`?"
    return f"{what}: {one_of(candidates)}" if candidates else "no values are defined"


_SUGGESTION = re.compile(r"did you mean `([^`]+)`\?").fullmatch


def suggested_word(hint: str) -> str:
    """Return the word that a hint of `did_you_mean` suggests; "" for other hints."""
    match = _SUGGESTION(hint)
    return match[1] if match else ""
