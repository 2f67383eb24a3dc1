"""Suggestions for misspelt words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cached_property
from heapq import nlargest

MAX_COMPARED = 64
"""Maximum number of known words with which a word is compared letter by letter."""
_MIN_RATIO = 0.6
"""Least similarity of a suggestion, from 0 to 1."""
_WINDOW = 250
"""Known words before and behind a word, ordered by their beginnings and by their ends, whose letters are counted."""


def _fold_word(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


class WordIndex:
    """The known words of one name space, prepared for many lookups, whose cost does not grow with their number."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = sorted(set(words))
        self._by_fold: dict[str, str] = {}
        for word in self.words:
            self._by_fold.setdefault(_fold_word(word), word)
        self._bits: dict[tuple[str, int], int] = {}
        """A bit for each letter and its number among equal ones of a word."""
        self._found: dict[tuple[str, str | None], str | None] = {}

    def closest(self, word: str, without: str | None = None) -> str | None:
        """Return the closest word, ignoring case, `_` and `-`, but not `without`; None if nothing is close."""
        key = (word, without)
        if key not in self._found:
            self._found[key] = self._find(word, without)
        return self._found[key]

    def _find(self, word: str, without: str | None) -> str | None:
        folded, hidden = _fold_word(word), None if without is None else _fold_word(without)
        if folded in self._by_fold and folded != hidden:
            return self._by_fold[folded]
        near = self._most_similar(folded, hidden)
        if near is None and len(folded) >= 3:
            longer = [fold for fold in self._beginnings_and_extensions(folded) if fold != hidden]
            near = longer[0] if len(longer) == 1 else None
        return None if near is None else self._by_fold[near]

    @cached_property
    def listed(self) -> str:
        """The words as `one_of` formats them."""
        return one_of(self.words)

    def similar(self, word: str) -> list[str]:
        """Return at most `MAX_COMPARED` words, first those with the most letters of a word."""
        return [self._by_fold[fold] for _, fold in self._rank(_fold_word(word))]

    def _most_similar(self, folded: str, hidden: str | None) -> str | None:
        """Return the folded word that `difflib.get_close_matches` returns, with few comparisons."""
        best = (_MIN_RATIO, "")
        matcher = SequenceMatcher(None, "", folded)
        for bound, fold in self._rank(folded):
            if (bound, fold) < best:
                break
            if fold != hidden:
                matcher.set_seq1(fold)
                best = max(best, (matcher.ratio(), fold))
        return best[1] or None

    def _rank(self, folded: str) -> list[tuple[float, str]]:
        """Return folded words with their greatest possible similarity, which follows from their letters."""
        letters, own, length, ranked = self._letters, self._mask(folded), len(folded), []
        for fold in self._neighbours(folded):
            bound = 2.0 * (own & letters[fold]).bit_count() / ((length + len(fold)) or 1)
            if bound >= _MIN_RATIO:
                ranked.append((bound, fold))
        return nlargest(MAX_COMPARED, ranked)

    def _neighbours(self, folded: str) -> Iterable[str]:
        """Return all folded words, or of many those that begin or end like a word."""
        if len(self._folds) <= 4 * _WINDOW:
            return self._folds
        at, back = bisect_left(self._folds, folded), bisect_left(self._reversed_folds, folded[::-1])
        same_end = self._reversed_folds[max(0, back - _WINDOW) : back + _WINDOW]
        return {*self._folds[max(0, at - _WINDOW) : at + _WINDOW], *(fold[::-1] for fold in same_end)}

    def _beginnings_and_extensions(self, folded: str) -> Iterator[str]:
        """Yield the folded words that a word begins with, and at most three that begin with it."""
        yield from filter(
            self._by_fold.__contains__, (folded[:end] for end in range(min(len(folded), self._longest + 1)))
        )
        at = bisect_left(self._folds, folded)
        yield from (fold for fold in self._folds[at : at + 3] if fold.startswith(folded))

    @cached_property
    def _folds(self) -> list[str]:
        return sorted(self._by_fold)

    @cached_property
    def _reversed_folds(self) -> list[str]:
        return sorted(fold[::-1] for fold in self._by_fold)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_fold), default=0)

    @cached_property
    def _letters(self) -> dict[str, int]:
        for fold in self._by_fold:
            for letter in _number_letters(fold):
                self._bits.setdefault(letter, 1 << len(self._bits))
        return {fold: self._mask(fold) for fold in self._by_fold}

    def _mask(self, folded: str) -> int:
        return sum(self._bits.get(letter, 0) for letter in _number_letters(folded))


def _number_letters(word: str) -> Iterator[tuple[str, int]]:
    """Yield each letter with its number among equal ones: what two words have in common is a set of these."""
    counts: dict[str, int] = {}
    for letter in word:
        counts[letter] = counts.get(letter, 0) + 1
        yield letter, counts[letter]


def closest_word(word: str, known: Iterable[str] | WordIndex) -> str | None:
    """Return the closest known word, ignoring case, `_` and `-`; None if nothing is close."""
    return (known if isinstance(known, WordIndex) else WordIndex(known)).closest(word)


def one_of(words: Iterable[str], limit: int = 12) -> str:
    """Format `a`, `b` or `c`; a long list is truncated."""
    unique = list(dict.fromkeys(words))
    quoted = [f"`{word}`" for word in unique[:limit]]
    if not quoted:
        return "nothing"
    if len(unique) > limit:
        return ", ".join(quoted) + f", … ({len(unique)} in all)"
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def did_you_mean(word: str, known: Iterable[str] | WordIndex, what: str = "known", without: str | None = None) -> str:
    """Return the hint for an unknown word: the closest known word other than `without`, else the list.

    A name space in which many words may be looked up is a `WordIndex`, made once.
    """
    index = known if isinstance(known, WordIndex) else WordIndex(known)
    near = index.closest(word, without)
    if near is not None:
        return f"did you mean `{near}`?"
    if without is not None:
        return f"{what}: {one_of(each for each in index.words if each != without)}"
    return f"{what}: {index.listed}" if index.words else "no values are defined"


_SUGGESTION = re.compile(r"did you mean `([^`]+)`\?").fullmatch


def suggested_word(hint: str) -> str:
    """Return the word that a hint of `did_you_mean` suggests; "" for other hints."""
    match = _SUGGESTION(hint)
    return match[1] if match else ""
