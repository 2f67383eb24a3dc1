"""Rename detection: pairs deleted specs with added ones by content.

Pure functions of plain data: the diff shows the pairs, and the Pulumi output turns them into aliases.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

SIMILAR = 2 / 3
"""Minimum similarity of a renamed spec to the original."""
_MIN_CERTAIN_LEAVES = 8
"""Specs with fewer leaves than this must be equal: with so few, accidental matches are common."""
_MIN_SHARED_LEAVES = 2
"""Specs with fewer leaves than this are never paired."""
_MAX_COMMON_LEAVES = 64
"""A leaf shared by more new specs than this does not discriminate, and is not looked up."""


class Candidate(NamedTuple):
    """One old or new spec: its name, its group (its kind, and anything that a rename cannot
    change, such as the user of a workspace), and its content."""

    key: Hashable
    group: Hashable
    content: frozenset[str]


def content_leaves(data: Any, name: str = "") -> frozenset[str]:
    """Yield the leaves of plain data with their paths; `name`, if given, is excluded so that it does not count.

    List entries have no index, so that an insertion counts as one difference.
    """
    if not name:
        return frozenset(_data_leaves(data, ""))
    blank = re.compile(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])")
    return frozenset(blank.sub("*", leaf) for leaf in _data_leaves(data, ""))


def _data_leaves(data: Any, path: str) -> Iterator[str]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _data_leaves(value, f"{path}.{key}")
    elif isinstance(data, list) and data:
        for value in data:
            yield from _data_leaves(value, f"{path}[]")
    elif isinstance(data, float) and data.is_integer():
        yield f"{path}={int(data)}"  # JSON that went through protobuf has no integers
    else:
        yield f"{path}={data}"


def match_renames(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[Hashable, Hashable]:
    """Return new key → old key for specs that were renamed.

    `old` are the deleted specs, `new` the added ones. Two specs of one group are paired if each is the other's unique
    best match by the Jaccard index of their leaves, and the index is at least `SIMILAR`. Ties are broken by the most
    similar names; if a tie remains, nothing is paired. The result does not depend on the order of the input.
    """
    found: dict[Hashable, Hashable] = {}
    before, after = _group_candidates(old), _group_candidates(new)
    for group in before.keys() & after.keys():
        found.update(_match(before[group], after[group]))
    return found


def _group_candidates(candidates: Sequence[Candidate]) -> dict[Hashable, list[Candidate]]:
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda candidate: str(candidate.key)):
        if len(candidate.content) >= _MIN_SHARED_LEAVES:
            groups.setdefault(candidate.group, []).append(candidate)
    return groups


def _match(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[Hashable, Hashable]:
    rows = _similarity_scores(old, new)
    columns: dict[int, dict[int, float]] = {}
    for i, row in rows.items():
        for j, score in row.items():
            columns.setdefault(j, {})[i] = score
    best_new = {i: _best_match(row, old[i], new) for i, row in rows.items()}
    best_old = {j: _best_match(column, new[j], old) for j, column in columns.items()}
    return {new[j].key: old[i].key for i, j in best_new.items() if j is not None and best_old[j] == i}


def _similarity_scores(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[int, dict[int, float]]:
    """Return the similarity of candidate pairs, found by rare leaves or by equal content."""
    index: dict[str, list[int]] = {}
    equal: dict[frozenset[str], list[int]] = {}
    for j, other in enumerate(new):
        equal.setdefault(other.content, []).append(j)
        for leaf in other.content:
            index.setdefault(leaf, []).append(j)
    scores: dict[int, dict[int, float]] = {}
    for i, one in enumerate(old):
        near = {j for leaf in one.content for j in index.get(leaf, ()) if len(index[leaf]) <= _MAX_COMMON_LEAVES}
        near.update(equal.get(one.content, ())[:_MAX_COMMON_LEAVES])
        row = {j: score for j in near if (score := _jaccard_index(one.content, new[j].content)) >= SIMILAR}
        if row:
            scores[i] = row
    return scores


def _jaccard_index(one: frozenset[str], other: frozenset[str]) -> float:
    """Fraction of shared leaves (Jaccard index)."""
    if one == other:
        return 1.0
    return len(one & other) / len(one | other) if min(len(one), len(other)) >= _MIN_CERTAIN_LEAVES else 0.0


def _best_match(row: dict[int, float], own: Candidate, others: Sequence[Candidate]) -> int | None:
    """Return the unique best match; ties are broken by the most similar name; None if a tie remains."""
    top = max(row.values())
    equal = [j for j, score in row.items() if score == top]
    if len(equal) == 1:
        return equal[0]
    nearness = {j: _name_similarity(str(own.key), str(others[j].key)) for j in equal}
    nearest = max(nearness.values())
    chosen = [j for j in equal if nearness[j] == nearest]
    return chosen[0] if len(chosen) == 1 else None


def _name_similarity(one: str, other: str) -> float:
    # SequenceMatcher is not symmetric, and both sides must agree.
    first, second = sorted((one, other))
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
