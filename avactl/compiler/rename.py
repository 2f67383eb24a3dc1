"""Which spec is which after a rename: those that vanished against those that are new, by their content."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

SIMILAR = 0.5
"""Least part of the content that two specs share when one is the other renamed; git's default for files."""


class Candidate(NamedTuple):
    """One spec, old or new: what it is called, among which others to look (kind and team), and its content."""

    key: Hashable
    group: Hashable
    content: frozenset[str]


def content(data: Any, name: str) -> frozenset[str]:
    """The leaves of plain data with their paths; `name` itself is taken out, so that it makes no difference."""
    blank = re.compile(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])")
    return frozenset(blank.sub("*", leaf) for leaf in _leaves(data, ""))


def _leaves(data: Any, path: str) -> Iterator[str]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from _leaves(value, f"{path}[{index}]")
    elif isinstance(data, float) and data.is_integer():
        yield f"{path}={int(data)}"  # JSON that came through protobuf has no whole numbers
    else:
        yield f"{path}={data}"


def match_renames(old: Sequence[Candidate], new: Sequence[Candidate]) -> dict[Hashable, Hashable]:
    """New key → old key of those that are one spec with two names.

    `old` are those that are there no more, `new` those that were not there before. The most similar pair comes first;
    among equals the order of the names decides, so the answer does not depend on the order of the input.
    """
    pairs = sorted(
        (-likeness, str(before.key), str(after.key), before.key, after.key)
        for before, after in _same_group(old, new)
        if (likeness := _likeness(before.content, after.content)) >= SIMILAR
    )
    found: dict[Hashable, Hashable] = {}
    taken: set[Hashable] = set()
    for _, _, _, before_key, after_key in pairs:
        if before_key not in taken and after_key not in found:
            found[after_key] = before_key
            taken.add(before_key)
    return found


def _same_group(old: Sequence[Candidate], new: Sequence[Candidate]) -> Iterable[tuple[Candidate, Candidate]]:
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in old:
        groups.setdefault(candidate.group, []).append(candidate)
    return ((before, after) for after in new for before in groups.get(after.group, ()))


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared part of all leaves (Jaccard index)."""
    either = len(one | other)
    return len(one & other) / either if either else 1.0
