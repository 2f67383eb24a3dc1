"""Objects of two compilations, paired and compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from avactl.diff.fields import Change, changed_lines, differences, dotted
from avactl.diff.model import Disruption, FieldChange, ObjectChange, worst
from avactl.diff.rules import classify, deletion
from avactl.diff.secrets import cover, cover_text
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item

DIGEST = re.compile(r"[0-9a-f]{8,64}").fullmatch


class Pair(NamedTuple):
    """An object before and after; None where it is not."""

    old: Manifest | None
    new: Manifest | None


def field_changes(changes: Iterable[Change]) -> tuple[FieldChange, ...]:
    """Differences as they may be printed, not yet classified."""
    return tuple(_printable(change, Disruption.NONE, "") for change in changes)


def _printable(change: Change, disruption: Disruption, reason: str) -> FieldChange:
    old, new = cover(change.old, change.name), cover(change.new, change.name)
    lines = tuple(changed_lines(old, new)) if change.lines and isinstance(old, str) and isinstance(new, str) else ()
    return FieldChange(cover_text(dotted(change.path)), change.op, old, new, lines, disruption, reason)


def object_changes(pairs: Iterable[Pair], renamed: tuple[Item, Item] | None = None) -> tuple[ObjectChange, ...]:
    """What becomes of each object of an intent; of a renamed one, objects of the same role belong together."""
    listed = list(pairs)
    if renamed is not None:
        listed = _by_role(listed, *renamed)
    found = []
    for old, new in listed:
        if old is None or new is None:
            found.append(_one_side(old, new))
        elif old.id != new.id:
            found.append(_renamed(old, new, renamed))
        else:
            change = _changed(old, new)
            if change.fields:  # else the two are written differently, and mean the same
                found.append(change)
    return tuple(sorted(found, key=lambda change: -(change.disruption == Disruption.DATA_LOSS)))


def _one_side(old: Manifest | None, new: Manifest | None) -> ObjectChange:
    if new is not None:
        return ObjectChange(new.id, "created", Disruption.NONE)
    if old is None:
        raise ValueError("a pair of nothing")
    if old.holds_data:
        return ObjectChange(old.id, "kept", Disruption.NONE, "it holds data: nothing deletes it, and no spec owns it")
    disruption, reason = deletion(old)
    return ObjectChange(old.id, "deleted", disruption, reason)


def _changed(old: Manifest, new: Manifest) -> ObjectChange:
    fields = []
    for change in differences(old.body, new.body):
        disruption, reason = classify(old.kind, change, old.body)
        path = ".".join(change.path)
        if any(path == owned or path.startswith(f"{owned}.") for owned in new.owned):
            disruption, reason = Disruption.NONE, "a controller sets it"
        fields.append(_printable(change, disruption, reason))
    top = worst(field.disruption for field in fields)
    reason = next((field.reason for field in fields if field.disruption == top and field.reason), "")
    if top == Disruption.DATA_LOSS and new.holds_data:
        reason += "; this one is protected, so applying stops there"
    return ObjectChange(new.id, "changed", top, reason, tuple(fields))


# -- renames ---------------------------------------------------------------------------------------------------------


def _role(manifest: Manifest, name: str) -> tuple[str, str, str]:
    return manifest.cluster, manifest.kind, placeholder(manifest.name, name)


def placeholder(text: str, name: str) -> str:
    """The text with `*` for a spec's name in it."""
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "*", text)


def _by_role(pairs: Sequence[Pair], old_item: Item, new_item: Item) -> list[Pair]:
    """Objects that vanish and objects that appear, paired where they are the same part of the intent."""
    vanished: dict[tuple[str, str, str], list[Manifest]] = {}
    for old, new in pairs:
        if new is None and old is not None:
            vanished.setdefault(_role(old, old_item.name), []).append(old)
    found = []
    for old, new in pairs:
        if old is None and new is not None:
            candidates = vanished.get(_role(new, new_item.name))
            found.append(Pair(candidates.pop(0) if candidates else None, new))
        elif new is not None:
            found.append(Pair(old, new))
    left = {id(manifest) for candidates in vanished.values() for manifest in candidates}
    return found + [pair for pair in pairs if pair.new is None and id(pair.old) in left]


_ANEW = {
    "Job": "new run",
    "Service": "answers at another address",
    "Deployment": "its pods stop, new ones start",
    "StatefulSet": "its pods stop, new ones start",
    "DaemonSet": "its pods stop, new ones start",
}
"""What a new name means for objects without data."""


def _renamed(old: Manifest, new: Manifest, renamed: tuple[Item, Item] | None) -> ObjectChange:
    """Kubernetes cannot rename: the old object is deleted, or kept with its data, and the new one is made."""
    names = tuple(item.name for item in renamed) if renamed else (old.name, new.name)
    fields = field_changes(_beside_names(differences(old.body, new.body), (old, new), names))
    before, after = (old.name, new.name) if old.namespace == new.namespace else (_qualified(old), _qualified(new))
    disruption, reason = deletion(old)
    if old.holds_data:
        disruption, reason = Disruption.REPLACE, f"{before} is kept with its data, {after} starts empty"
    elif disruption == Disruption.DATA_LOSS:
        reason = f"{before} is deleted {reason}, {after} starts empty"
    else:
        disruption, reason = Disruption.REPLACE, _ANEW.get(old.kind, "")
    return ObjectChange(new.id, "renamed", disruption, reason, fields, old.id)


def _qualified(manifest: Manifest) -> str:
    return f"{manifest.namespace}/{manifest.name}"


def _beside_names(
    changes: Iterable[Change], objects: tuple[Manifest, Manifest], names: tuple[str, ...]
) -> list[Change]:
    """The differences that do not just follow from the other name or the other namespace."""

    def neutral(value: object, side: int) -> str:
        # Steps and values alike: entries of lists may be keyed by what carries the name.
        return placeholder(placeholder(repr(value), names[side]), objects[side].namespace or "-")

    gone = {neutral((c.path, c.old), 0) for c in changes if c.op == "removed"}
    come = {neutral((c.path, c.new), 1) for c in changes if c.op == "added"}
    found = []
    for change in changes:
        if change.path in (("metadata", "name"), ("metadata", "namespace")):
            continue
        if change.op == "changed" and neutral(change.old, 0) == neutral(change.new, 1):
            continue
        if change.op == "removed" and neutral((change.path, change.old), 0) in come:
            continue
        if change.op == "added" and neutral((change.path, change.new), 1) in gone:
            continue
        found.append(change)
    return found
