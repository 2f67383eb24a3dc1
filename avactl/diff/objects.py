"""Pair and compare the objects of two compilations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from avactl.diff.fields import Change, changed_lines, differences, dotted
from avactl.diff.model import ABSENT, Disruption, FieldChange, ObjectChange, worst
from avactl.diff.rules import classify, deletion
from avactl.diff.secrets import cover, cover_text
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item


class Pair(NamedTuple):
    """An object before and after; None if missing."""

    old: Manifest | None
    new: Manifest | None


def field_changes(changes: Iterable[Change]) -> tuple[FieldChange, ...]:
    """Return differences in printable form, not yet classified."""
    return tuple(_printable(change, Disruption.NONE, "") for change in changes)


def _printable(change: Change, disruption: Disruption, reason: str) -> FieldChange:
    old, new = cover(change.old, change.name), cover(change.new, change.name)
    return FieldChange(cover_text(dotted(change.path)), change.op, old, new, _lines(old, new), disruption, reason)


def _lines(old: Any, new: Any) -> tuple[str, ...]:
    """Return the changed lines of a text with several lines, wherever it is: in a list, too, and on one side only."""
    one, other = "" if old is ABSENT else old, "" if new is ABSENT else new
    if not (isinstance(one, str) and isinstance(other, str)) or not ("\n" in one[:-1] or "\n" in other[:-1]):
        return ()
    return tuple(changed_lines(one, other))


def object_changes(pairs: Iterable[Pair], renamed: tuple[Item, Item] | None = None) -> tuple[ObjectChange, ...]:
    """Return the change of each object; for a renamed intent, objects with the same role are paired."""
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
            if change.fields:  # else only the notation differs
                found.append(change)
    return tuple(sorted(found, key=lambda change: -(change.disruption == Disruption.DATA_LOSS)))


def _one_side(old: Manifest | None, new: Manifest | None) -> ObjectChange:
    if new is not None:
        return ObjectChange(new.id, "created", Disruption.NONE, manifest=new)
    if old is None:
        raise ValueError("an empty pair")
    if old.holds_data:
        reason = "holds data: never deleted, no longer owned by a spec"
        return ObjectChange(old.id, "kept", Disruption.NONE, reason, manifest=old)
    disruption, reason = deletion(old)
    return ObjectChange(old.id, "deleted", disruption, reason, manifest=old)


def _changed(old: Manifest, new: Manifest) -> ObjectChange:
    fields = []
    for change in differences(old.body, new.body):
        disruption, reason = classify(old.kind, change, old.body)
        path = ".".join(change.path)
        if any(path == owned or path.startswith(f"{owned}.") for owned in new.owned):
            disruption, reason = Disruption.NONE, "set by a controller"
        patch = _patch(new, change.path) or _patch(old, change.path)
        fields.append(replace(_printable(change, disruption, reason), patch=patch))
    top = worst(field.disruption for field in fields)
    reason = next((field.reason for field in fields if field.disruption == top and field.reason), "")
    if top == Disruption.DATA_LOSS and new.holds_data:
        reason += "; it is protected, so the apply stops here"
    return ObjectChange(new.id, "changed", top, reason, tuple(fields), manifest=new)


def _patch(manifest: Manifest, path: tuple[str, ...]) -> str:
    """Return the place of the patch that sets a value, or one around or inside of it."""
    for patched in reversed(manifest.patched):
        length = min(len(path), len(patched.path))
        if path[:length] == patched.path[:length]:
            span = manifest.item.span("patches", patched.number)
            return f"{span.file}:{span.line}"
    return ""


# -- renames ---------------------------------------------------------------------------------------------------------


def _role(manifest: Manifest, name: str) -> tuple[str, str, str]:
    return manifest.cluster, manifest.kind, placeholder(manifest.name, name)


def placeholder(text: str, name: str) -> str:
    """Replace a spec's name in the text by `*`."""
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "*", text)


def _by_role(pairs: Sequence[Pair], old_item: Item, new_item: Item) -> list[Pair]:
    """Pair removed and added objects that have the same role in the intent."""
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
    "Service": "the address changes",
    "Deployment": "its pods stop, new ones start",
    "StatefulSet": "its pods stop, new ones start",
    "DaemonSet": "its pods stop, new ones start",
    "LeaderWorkerSet": "its pods stop, new ones start",
    "DisaggregatedSet": "its pods stop, new ones start",
}
"""Consequence of a rename for objects without data."""


def _renamed(old: Manifest, new: Manifest, renamed: tuple[Item, Item] | None) -> ObjectChange:
    """Kubernetes cannot rename: delete the old object, or keep it with its data, and create the new one."""
    names = tuple(item.name for item in renamed) if renamed else (old.name, new.name)
    fields = field_changes(_except_names(differences(old.body, new.body), (old, new), names))
    before, after = (old.name, new.name) if old.namespace == new.namespace else (_qualified(old), _qualified(new))
    disruption, reason = deletion(old)
    if old.holds_data:
        disruption, reason = Disruption.REPLACE, f"{before} is kept with its data; {after} starts empty"
    elif disruption == Disruption.DATA_LOSS:
        reason = f"{before} is deleted {reason}; {after} starts empty"
    else:
        disruption, reason = Disruption.REPLACE, _ANEW.get(old.kind, "")
    return ObjectChange(new.id, "renamed", disruption, reason, fields, old.id, new)


def _qualified(manifest: Manifest) -> str:
    return f"{manifest.namespace}/{manifest.name}"


def _except_names(
    changes: Iterable[Change], objects: tuple[Manifest, Manifest], names: tuple[str, ...]
) -> list[Change]:
    """Return the differences that do not merely follow from the new name or namespace."""

    def neutral(value: object, side: int) -> str:
        # Steps too: list entries may be keyed by a value that contains the name.
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
