"""Detect renamed specs between two revisions. Shared with the Pulumi output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from avactl.compiler.rename import Candidate, content_leaves, match_renames
from avactl.program import registry
from avactl.program.program import Item

Key = tuple[str, str, str]
"""Kind, team ("" for the platform), name."""


def find_renames(gone: Iterable[Item], fresh: Iterable[Item]) -> dict[Key, Key]:
    """Return new key → old key of renamed specs.

    A spec that sets `objectName` to another one's name is that spec; others are matched by content.
    """
    before, after = {item.key: item for item in gone}, {item.key: item for item in fresh}
    by_objects = {(item.kind, item.team, item.name): key for key, item in before.items()}
    found: dict[Key, Key] = {}
    for key, item in after.items():
        old = by_objects.get((item.kind, item.team, item.name))
        if item.name != item.spec_name and old in before:
            found[key] = old
    # A rename mostly leaves the values unchanged; some values contain the name.
    for blank in (False, True):
        known = set(found.values())
        old_rest = [_make_candidate(item, blank) for key, item in before.items() if key not in known]
        new_rest = [_make_candidate(item, blank) for key, item in after.items() if key not in found]
        found |= {cast(Key, new): cast(Key, old) for new, old in match_renames(old_rest, new_rest).items()}
    return found


def _make_candidate(item: Item, blank: bool) -> Candidate:
    # A quota of another team or a workspace of another user is a different spec, however similar.
    own = registry.get_kind(item.kind).identity(item)
    return Candidate(item.key, (item.kind, own), content_leaves(item.doc.get("spec"), item.spec_name if blank else ""))
