"""Group intents with equal changes, so that each change is shown once.

A group is shown by the values of its first intent, so those of all are equal. Names of objects, and references to them,
may differ by the spec's name: they are compared and shown with `*` for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from avactl.base.equality import canonical_json, is_same
from avactl.base.object_identity import ObjectId
from avactl.change.diff.model import ABSENT, Consequence, Diff, FieldChange, IntentChange, ObjectChange
from avactl.change.diff.objects import generalize, replace_spec_name
from avactl.program import registry


class ObjectGroup(NamedTuple):
    """Objects with equal changes."""

    ids: tuple[ObjectId, ...]
    change: ObjectChange
    """The first object; of several whose names differ, with `*` for the spec's name."""

    @property
    def pattern(self) -> str:
        """Return their common name, with `*` for the spec's name if they differ."""
        return self.change.id.name


class Group(NamedTuple):
    """Intents with equal changes; most groups have one."""

    intents: tuple[IntentChange, ...]
    objects: tuple[ObjectGroup, ...]

    @property
    def first(self) -> IntentChange:
        return self.intents[0]

    @property
    def consequences(self) -> list[Consequence]:
        """Return the consequences of all intents, each once."""
        several = len(self.intents) > 1
        return list(
            dict.fromkeys(
                _general_consequence(c, intent) if several else c
                for intent in self.intents
                for c in intent.consequences
            )
        )


def group_intents(diff: Diff) -> list[Group]:
    """Group all intents of a diff by equal changes, in the order of the first of each."""
    found: dict[Hashable, list[IntentChange]] = {}
    for intent in diff.intents:
        found.setdefault(_intent_signature(intent), []).append(intent)
    return [Group(tuple(alike), _object_groups(alike)) for alike in found.values()]


def _object_groups(intents: Iterable[IntentChange]) -> tuple[ObjectGroup, ...]:
    found: dict[Hashable, list[tuple[ObjectChange, ObjectChange]]] = {}
    for intent in intents:
        for change in intent.objects:
            with_placeholder = _general_object(change, intent)
            found.setdefault(_object_signature(with_placeholder), []).append((change, with_placeholder))
    return tuple(_object_group(alike) for alike in found.values())


def _object_group(alike: list[tuple[ObjectChange, ObjectChange]]) -> ObjectGroup:
    first, with_placeholder = alike[0]
    equal = len({_object_signature(change) for change, _ in alike}) == 1
    patches = list(dict.fromkeys(tuple(field.patch for field in change.fields) for change, _ in alike))
    shown = first if equal else with_placeholder
    if len(patches) > 1:
        places = [_join_places(each) for each in zip(*patches, strict=True)]
        shown = replace(
            shown, fields=tuple(replace(field, patch=place) for field, place in zip(shown.fields, places, strict=True))
        )
    return ObjectGroup(tuple(change.id for change, _ in alike), shown)


def _join_places(places: Iterable[str]) -> str:
    first, *others = dict.fromkeys(places)
    return f"{first} and {len(others)} more" if others else first


# -- the spec's name ---------------------------------------------------------------------------------------------------


def _placeholder_name(intent: IntentChange) -> str:
    """Return the name that `*` stands for; "" if the objects have another one than the spec."""
    return intent.item.name if intent.item.name == intent.key.name else ""


_OWN_OBJECTS = ("service account ", "host network ")
"""Starts of rights that name objects of the spec."""


def _general_consequence(consequence: Consequence, intent: IntentChange) -> Consequence:
    """Return a consequence with `*` for the spec's name in names of its objects."""
    name = _placeholder_name(intent)
    if consequence.topic != "security" or not name or "*" in consequence.text:
        return consequence
    if not consequence.text.startswith(_OWN_OBJECTS):
        return consequence
    return consequence._replace(text=generalize(consequence.text, name))


def _general_object(change: ObjectChange, intent: IntentChange) -> ObjectChange:
    """Return a change with `*` for the spec's name in the object's name and in references to the spec's objects; in
    manifests of the user's, only in the object's name."""
    name = _placeholder_name(intent)
    if not name:
        return change
    change = replace(
        change, id=change.id._replace(key=change.id.key._replace(name=replace_spec_name(change.id.name, name)))
    )
    if registry.get_kind(intent.key.kind).has_written:
        return change
    fields = tuple(_general_field(field, name) for field in change.fields)
    return replace(change, reason=generalize(change.reason, name), fields=fields)


def _general_field(field: FieldChange, name: str) -> FieldChange:
    if "*" in field.path or any("*" in text for text in _identity_fields(field.old, field.new)):
        return field
    path, old, new = (generalize(value, name) for value in (field.path, field.old, field.new))
    if is_same([path, old, new], [field.path, field.old, field.new]):
        return field
    lines = tuple(generalize(line, name) for line in field.lines)
    return replace(field, path=path, old=old, new=new, lines=lines, general=True)


# -- signatures --------------------------------------------------------------------------------------------------------


def _intent_signature(intent: IntentChange) -> Hashable:
    """Return the value that two intents must share to be in one group."""
    return (
        intent.key.kind,
        intent.op,
        intent.objects_known,
        _spec_content(intent) if intent.op in ("added", "repaired") else "",
        tuple((fact.name, *_identity_fields(fact.old, fact.new)) for fact in intent.facts),
        tuple(_field_signature(change) for change in intent.spec),
        tuple((c.level, c.text) for c in intent.consequences if c.topic in ("run", "cause")),
        tuple(
            (text := _general_consequence(c, intent).text, text == c.text, c.lines)
            for c in intent.consequences
            if c.topic == "security"
        ),
        # The same change in several clusters or namespaces is one change.
        frozenset(_object_signature(_general_object(change, intent)) for change in intent.objects),
    )


def _spec_content(intent: IntentChange) -> str:
    """Return what a new spec says, without its identity, which is shown."""
    value = intent.item.doc.value
    metadata = {key: each for key, each in value["metadata"].items() if key not in ("name", "team")}
    return canonical_json({**value, "metadata": metadata})


def _object_signature(change: ObjectChange) -> Hashable:
    """Return the value that two objects must share, apart from their clusters and namespaces."""
    return (
        change.op,
        change.id.group,
        change.id.kind,
        change.id.name,
        change.disruption,
        change.reason,
        tuple(_field_signature(field) for field in change.fields),
        canonical_json(change.manifest.body) if change.as_written and change.manifest else "",
    )


def _field_signature(change: FieldChange) -> Hashable:
    values = () if change.digest else (change.general, *_identity_fields(change.old, change.new))
    return (change.path, change.op, change.disruption, change.notation, bool(change.patch), *values)


def _identity_fields(*values: Any) -> tuple[str, ...]:
    return tuple("" if value is ABSENT else canonical_json(value) for value in values)
