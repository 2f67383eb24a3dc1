"""Which spec is which after a rename: those that vanished against those that are new, by their content.

Pure functions of plain data: the diff shows the pairs, and the Pulumi edge makes aliases of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

SIMILAR = 2 / 3
"""Least part of the content that two specs share when one is the other renamed."""
_CERTAIN = 8
"""Specs with fewer leaves than this must be equal: among so few, chance agrees too often."""
_EVIDENCE = 2
"""Specs with fewer leaves than this are never paired."""
_COMMON = 64
"""A leaf that more new specs than this have tells nothing apart, and is not looked up."""


class Candidate(NamedTuple):
    """One spec, old or new: what it is called, among which others to look (its kind, and whatever a rename cannot
    change, such as the user of a workspace), and its content."""

    key: Hashable
    group: Hashable
    content: frozenset[str]


def content(data: Any, name: str = "") -> frozenset[str]:
    """The leaves of plain data with their paths; `name` itself, if given, is taken out, so that it makes no difference.

    Entries of lists have no index, so that an insertion is one difference.
    """
    if not name:
        return frozenset(_leaves(data, ""))
    blank = re.compile(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])")
    return frozenset(blank.sub("*", leaf) for leaf in _leaves(data, ""))


def _leaves(data: Any, path: str) -> Iterator[str]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(data, list) and data:
        for value in data:
            yield from _leaves(value, f"{path}[]")
    elif isinstance(data, float) and data.is_integer():
        yield f"{path}={int(data)}"  # JSON that came through protobuf has no whole numbers
    else:
        yield f"{path}={data}"


def match_renames(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[Hashable, Hashable]:
    """New key → old key of those that are one spec with two names.

    `old` are those that are there no more, `new` those that were not there before. Two of one group are paired where
    each is the other's one best match by the Jaccard index of their leaves, and that is at least `SIMILAR`. Of several
    that are equally good the nearest names decide; where those do not either, nothing is paired. The answer does not
    depend on the order of the input.
    """
    found: dict[Hashable, Hashable] = {}
    before, after = _groups(old), _groups(new)
    for group in before.keys() & after.keys():
        found.update(_match(before[group], after[group]))
    return found


def _groups(candidates: Sequence[Candidate]) -> dict[Hashable, list[Candidate]]:
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda candidate: str(candidate.key)):
        if len(candidate.content) >= _EVIDENCE:
            groups.setdefault(candidate.group, []).append(candidate)
    return groups


def _match(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[Hashable, Hashable]:
    rows = _scores(old, new)
    columns: dict[int, dict[int, float]] = {}
    for i, row in rows.items():
        for j, score in row.items():
            columns.setdefault(j, {})[i] = score
    best_new = {i: _best(row, old[i], new) for i, row in rows.items()}
    best_old = {j: _best(column, new[j], old) for j, column in columns.items()}
    return {new[j].key: old[i].key for i, j in best_new.items() if j is not None and best_old[j] == i}


def _scores(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[int, dict[int, float]]:
    """Likeness of the pairs that can be renames, found by the leaves that few specs have, or by equal content."""
    index: dict[str, list[int]] = {}
    equal: dict[frozenset[str], list[int]] = {}
    for j, other in enumerate(new):
        equal.setdefault(other.content, []).append(j)
        for leaf in other.content:
            index.setdefault(leaf, []).append(j)
    scores: dict[int, dict[int, float]] = {}
    for i, one in enumerate(old):
        near = {j for leaf in one.content for j in index.get(leaf, ()) if len(index[leaf]) <= _COMMON}
        near.update(equal.get(one.content, ())[:_COMMON])
        row = {j: score for j in near if (score := _likeness(one.content, new[j].content)) >= SIMILAR}
        if row:
            scores[i] = row
    return scores


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared part of all leaves (Jaccard index)."""
    if one == other:
        return 1.0
    return len(one & other) / len(one | other) if min(len(one), len(other)) >= _CERTAIN else 0.0


def _best(row: dict[int, float], own: Candidate, others: Sequence[Candidate]) -> int | None:
    """The one best match; among equals the one with the nearest name; None if that is not one."""
    top = max(row.values())
    equal = [j for j, score in row.items() if score == top]
    if len(equal) == 1:
        return equal[0]
    nearness = {j: _near(str(own.key), str(others[j].key)) for j in equal}
    nearest = max(nearness.values())
    chosen = [j for j in equal if nearness[j] == nearest]
    return chosen[0] if len(chosen) == 1 else None


def _near(one: str, other: str) -> float:
    # SequenceMatcher is not symmetric, and both sides must come to the same answer.
    first, second = sorted((one, other))
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
