"""Renames between two revisions. The matching is shared with the Pulumi edge, so it stands below both."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import cast

from avactl.compiler.rename import Candidate, content, match_renames
from avactl.kinds.program import Item

Key = tuple[str, str, str]
"""Kind, team ("" for the platform's), name."""


def renames(gone: Iterable[Item], fresh: Iterable[Item]) -> dict[Key, Key]:
    """New key → old key of the specs that are one spec with two names.

    A spec that keeps the objects of another one by `objectName` is that one; the others are known by their content.
    The team may change; the user of a workspace may not: that is somebody else's workspace.
    """
    before, after = {item.key: item for item in gone}, {item.key: item for item in fresh}
    by_objects = {(item.kind, item.team, item.name): key for key, item in before.items()}
    found: dict[Key, Key] = {}
    for key, item in after.items():
        old = by_objects.get((item.kind, item.team, item.name))
        if item.name != item.spec_name and old in before:
            found[key] = old
            del before[old]
    rest = [item for key, item in after.items() if key not in found]
    matched = match_renames([_candidate(item) for item in before.values()], [_candidate(item) for item in rest])
    return found | {cast(Key, new): cast(Key, old) for new, old in matched.items()}


def _candidate(item: Item) -> Candidate:
    said = item.doc.get("spec")
    group: Hashable = (item.kind, getattr(item.spec, "user", None))
    return Candidate(item.key, group, content(said, item.spec_name))
