"""Renames between two revisions. The matching is shared with the Pulumi edge, so it stands below both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from avactl.compiler.rename import Candidate, content, match_renames
from avactl.kinds import registry
from avactl.kinds.program import Item

Key = tuple[str, str, str]
"""Kind, team ("" for the platform's), name."""


def renames(gone: Iterable[Item], fresh: Iterable[Item]) -> dict[Key, Key]:
    """New key → old key of the specs that are one spec with two names.

    A spec that keeps the objects of another one by `objectName` is that one; the others are known by their content.
    """
    before, after = {item.key: item for item in gone}, {item.key: item for item in fresh}
    by_objects = {(item.kind, item.team, item.name): key for key, item in before.items()}
    found: dict[Key, Key] = {}
    for key, item in after.items():
        old = by_objects.get((item.kind, item.team, item.name))
        if item.name != item.spec_name and old in before:
            found[key] = old
    # Who renames a spec mostly leaves its values alone; some values follow the name.
    for blank in (False, True):
        known = set(found.values())
        old_rest = [_candidate(item, blank) for key, item in before.items() if key not in known]
        new_rest = [_candidate(item, blank) for key, item in after.items() if key not in found]
        found |= {cast(Key, new): cast(Key, old) for new, old in match_renames(old_rest, new_rest).items()}
    return found


def _candidate(item: Item, blank: bool) -> Candidate:
    # A quota of another team, a workspace of another user: that is another one, however alike they are.
    own = registry.kind(item.kind).identity(item)
    return Candidate(item.key, (item.kind, own), content(item.doc.get("spec"), item.spec_name if blank else ""))
