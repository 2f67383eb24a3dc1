"""Pair and compare the objects of two compilations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from avactl.base.equality import canonical_json
from avactl.change.diff.fields import ValueChange, changed_lines, format_path, object_differences
from avactl.change.diff.model import ABSENT, Disruption, FieldChange, ObjectChange, worst_disruption
from avactl.change.diff.rules import classify_change, classify_deletion, is_refused
from avactl.change.diff.secrets import cover_text, mask_credentials
from avactl.contracts import names
from avactl.contracts.pod_annotations import AnnotationReader, read_by
from avactl.program import registry
from avactl.program.manifest import Manifest
from avactl.program.program import Item


class Pair(NamedTuple):
    """An object before and after; None if missing."""

    old: Manifest | None
    new: Manifest | None


def field_changes(changes: Iterable[ValueChange]) -> tuple[FieldChange, ...]:
    """Return differences in printable form, not yet classified."""
    return tuple(_make_field_change(change, Disruption.NONE, "") for change in changes)


def _make_field_change(change: ValueChange, disruption: Disruption, reason: str) -> FieldChange:
    old, new = mask_credentials(change.old, change.name), mask_credentials(change.new, change.name)
    path = cover_text(format_path(change.path))
    return FieldChange(
        path, change.op, old, new, _changed_lines(old, new), disruption, reason, notation=change.notation
    )


def _changed_lines(old: Any, new: Any) -> tuple[str, ...]:
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
            found.append(_make_rename(old, new, renamed))
        else:
            change = _make_object_change(old, new)
            if change.fields:  # else only the notation of quantities differs
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
    disruption, reason = classify_deletion(old)
    return ObjectChange(old.id, "deleted", disruption, reason, manifest=old)


def _make_object_change(old: Manifest, new: Manifest) -> ObjectChange:
    fields = []
    for change in object_differences(old.body, new.body):
        disruption, reason = classify_change(old.kind, change, old.body)
        path = ".".join(change.path)
        if any(path == owned or path.startswith(f"{owned}.") for owned in new.owned):
            disruption, reason = Disruption.NONE, "set by a controller"
        patch = _patch_place(new, change.path) or _patch_place(old, change.path)
        digest = not patch and _is_digest(change, new.item)
        fields.append(replace(_make_field_change(change, disruption, reason), patch=patch, digest=digest))
    top = worst_disruption(field.disruption for field in fields)
    reason = next((field.reason for field in fields if field.disruption == top and field.reason), "")
    refused = is_refused(top, old.holds_data or new.holds_data)
    if refused and top == Disruption.DATA_LOSS:
        protected = old.holds_data or new.holds_data
        reason += "; it is protected, so the apply stops here" if protected else "; `avactl reconcile` refuses it"
    elif refused:
        reason = "immutable, and the object is protected: the apply stops here"
    return ObjectChange(new.id, "changed", top, reason, tuple(fields), manifest=new, refused=refused)


_DIGEST_KEYS = frozenset(
    (names.TEMPLATE_DIGEST, names.PROMOTED_VALUES, *(each.name for each in read_by(AnnotationReader.DIFF)))
)
"""Annotations in which avactl writes digests of what is shown as changed elsewhere."""
_is_hexadecimal = re.compile(r'[0-9a-f]{8,64}|\{("[^"]+":"[0-9a-f]{16}",?)+\}').fullmatch
"""A digest, or a JSON object of digests."""


def _is_digest(change: ValueChange, item: Item) -> bool:
    """Return whether a value is a digest that avactl writes, not an annotation of the same name in a manifest of the
    user's."""
    *_, group, key = ("", *change.path)
    own = group == "annotations" and key in _DIGEST_KEYS and not registry.get_kind(item.kind).has_written
    return own and all(isinstance(each, str) and _is_hexadecimal(each) for each in (change.old, change.new))


def _patch_place(manifest: Manifest, path: tuple[str, ...]) -> str:
    """Return the place of the patch that sets a value, or one around or inside of it."""
    for patched in reversed(manifest.patched):
        length = min(len(path), len(patched.path))
        if path[:length] == patched.path[:length]:
            span = manifest.item.span("patches", patched.number)
            return f"{span.file}:{span.line}"
    return ""


# -- renames ---------------------------------------------------------------------------------------------------------


def _role_of(manifest: Manifest, name: str) -> tuple[str, str, str]:
    return manifest.cluster, manifest.kind, replace_spec_name(manifest.name, name)


def replace_spec_name(text: str, name: str) -> str:
    """Replace a spec's name in the name of an object by `*`."""
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "*", text)


def generalize(value: Any, name: str) -> Any:
    """Return a value with `*` for the spec's name where it refers to one of its objects: `*-worker`, and
    `*-worker-0.*-rendezvous.vision.svc`.

    Any other value that contains the name stays as it is. The caller checks that no value contains `*`.
    """
    if isinstance(value, str):
        return _reference_pattern(name).sub(lambda found: replace_spec_name(found[0], name), value)
    if isinstance(value, dict):
        return {generalize(key, name): generalize(inner, name) for key, inner in value.items()}
    return [generalize(inner, name) for inner in value] if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _reference_pattern(name: str) -> re.Pattern[str]:
    own = rf"{re.escape(name)}(?:-[a-z0-9]+)*"
    host = rf"{own}(?:\.{own})?(?:\.[a-z0-9-]+\.svc(?:\.cluster\.local)?)?"
    return re.compile(rf"(?<![\w.@/-]){host}(?![\w.@/-])")


def _by_role(pairs: Sequence[Pair], old_item: Item, new_item: Item) -> list[Pair]:
    """Pair removed and added objects that have the same role in the intent."""
    vanished: dict[tuple[str, str, str], list[Manifest]] = {}
    for old, new in pairs:
        if new is None and old is not None:
            vanished.setdefault(_role_of(old, old_item.name), []).append(old)
    found = []
    for old, new in pairs:
        if old is None and new is not None:
            candidates = vanished.get(_role_of(new, new_item.name))
            found.append(Pair(candidates.pop(0) if candidates else None, new))
        elif new is not None:
            found.append(Pair(old, new))
    left = {id(manifest) for candidates in vanished.values() for manifest in candidates}
    return found + [pair for pair in pairs if pair.new is None and id(pair.old) in left]


_RECREATED_KINDS = {
    "Job": "new run",
    "Service": "the address changes",
    "Deployment": "its pods stop, new ones start",
    "StatefulSet": "its pods stop, new ones start",
    "DaemonSet": "its pods stop, new ones start",
    "LeaderWorkerSet": "its pods stop, new ones start",
    "DisaggregatedSet": "its pods stop, new ones start",
}
"""Consequence of a rename for objects without data."""


def _make_rename(old: Manifest, new: Manifest, renamed: tuple[Item, Item] | None) -> ObjectChange:
    """Kubernetes cannot rename: delete the old object, or keep it with its data, and create the new one."""
    changes = object_differences(old.body, new.body)
    if renamed is not None and not registry.get_kind(new.item.kind).has_written:
        changes = _except_names(changes, (old, new), renamed)
    else:
        changes = [change for change in changes if change.path not in _IDENTITY_PATHS]
    fields = tuple(
        replace(_make_field_change(change, Disruption.NONE, ""), digest=_is_digest(change, new.item))
        for change in changes
    )
    before, after = (
        (old.name, new.name) if old.namespace == new.namespace else (_qualified_name(old), _qualified_name(new))
    )
    disruption, reason = classify_deletion(old)
    if old.holds_data:
        disruption, reason = Disruption.REPLACE, f"{before} is kept with its data; {after} starts empty"
    elif disruption == Disruption.DATA_LOSS:
        reason = f"{before} is deleted {reason}; {after} starts empty"
    else:
        disruption, reason = Disruption.REPLACE, _RECREATED_KINDS.get(old.kind, "")
    return ObjectChange(new.id, "renamed", disruption, reason, fields, old.id, new)


def _qualified_name(manifest: Manifest) -> str:
    return f"{manifest.namespace}/{manifest.name}"


_IDENTITY_PATHS = (("metadata", "name"), ("metadata", "namespace"))


def _except_names(
    changes: Iterable[ValueChange], objects: tuple[Manifest, Manifest], items: tuple[Item, Item]
) -> list[ValueChange]:
    """Return the differences that do not merely follow from the new name or namespace. Of texts in ConfigMaps, which
    may be the user's files, all are returned."""

    def neutral(value: Any, side: int) -> str:
        # Steps too: list entries may be keyed by a value that contains the name.
        return canonical_json(_without_namespace(generalize(value, items[side].name), objects[side].namespace))

    listed = [change for change in changes if change.path not in _IDENTITY_PATHS]
    named = [
        change
        for change in listed
        if change.path[0] not in ("data", "binaryData")
        and "*" not in canonical_json([list(change.path), change.old, change.new])
    ]
    gone = {neutral([list(c.path), c.old], 0) for c in named if c.op == "removed"}
    come = {neutral([list(c.path), c.new], 1) for c in named if c.op == "added"}
    follow = {
        id(change)
        for change in named
        if (change.op == "changed" and neutral(change.old, 0) == neutral(change.new, 1))
        or (change.op == "removed" and neutral([list(change.path), change.old], 0) in come)
        or (change.op == "added" and neutral([list(change.path), change.new], 1) in gone)
    }
    return [change for change in listed if id(change) not in follow]


def _without_namespace(value: Any, namespace: str) -> Any:
    """Return a value with `-` for texts that are the namespace, and for the namespace in names of hosts."""
    if isinstance(value, str) and namespace:
        text = "-" if value == namespace else value
        return re.sub(rf"(?<=\.){re.escape(namespace)}(?=\.svc\b)", "-", text)
    if isinstance(value, dict):
        return {key: _without_namespace(inner, namespace) for key, inner in value.items()}
    return [_without_namespace(inner, namespace) for inner in value] if isinstance(value, list) else value
