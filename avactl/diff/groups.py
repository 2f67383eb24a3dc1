"""Group intents with equal changes, so that each change is shown once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from avactl.diff.model import ABSENT, DIGEST, Consequence, Diff, FieldChange, IntentChange, ObjectChange
from avactl.diff.objects import placeholder
from avactl.kinds.manifest import ObjectId


class ObjectGroup(NamedTuple):
    """Objects with equal changes."""

    ids: tuple[ObjectId, ...]
    change: ObjectChange
    """The first object."""
    pattern: str
    """Their common name, with `*` for the intent's name if there are several."""


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
        return list(dict.fromkeys(c for intent in self.intents for c in intent.consequences))


def groups(diff: Diff) -> list[Group]:
    """Group all intents of a diff by equal changes, in the order of the first of each."""
    found: dict[Hashable, list[IntentChange]] = {}
    for intent in diff.intents:
        found.setdefault(_intent_signature(intent), []).append(intent)
    return [Group(tuple(alike), _object_groups(alike)) for alike in found.values()]


def _object_groups(intents: Iterable[IntentChange]) -> tuple[ObjectGroup, ...]:
    found: dict[Hashable, list[tuple[ObjectChange, str]]] = {}
    for intent in intents:
        for change in intent.objects:
            role = placeholder(change.id.name, intent.item.name)
            found.setdefault(_object_signature(change, intent), []).append((change, role))
    return tuple(
        ObjectGroup(
            tuple(change.id for change, _ in alike),
            alike[0][0],
            alike[0][0].id.name if len({change.id.name for change, _ in alike}) == 1 else alike[0][1],
        )
        for alike in found.values()
    )


def _intent_signature(intent: IntentChange) -> Hashable:
    """Return the value that two intents must share to be in one group."""
    return (
        intent.key.kind,
        intent.op,
        intent.objects_known,
        tuple((fact.name, *_pair(fact.old, fact.new, intent)) for fact in intent.facts),
        tuple(_field_signature(change, intent) for change in intent.spec),
        tuple((c.level, c.text) for c in intent.consequences if c.topic in ("run", "cause")),
        tuple(_neutral((c.text, c.lines), intent) for c in intent.consequences if c.topic == "security"),
        # A new spec is shown whole.
        _neutral(intent.item.doc.value, intent) if intent.op in ("added", "repaired") else "",
        # The same change in several clusters or namespaces is one change.
        frozenset(_object_signature(change, intent) for change in intent.objects),
    )


def _object_signature(change: ObjectChange, intent: IntentChange) -> Hashable:
    return (
        change.op,
        change.id.kind,
        placeholder(change.id.name, intent.item.name),
        change.disruption,
        _neutral(change.reason, intent),
        tuple(_field_signature(field, intent) for field in change.fields),
        _neutral(change.manifest.body, intent) if change.as_written and change.manifest else "",
    )


def _field_signature(change: FieldChange, intent: IntentChange) -> Hashable:
    return (placeholder(change.path, intent.item.name), change.op, change.disruption,
            *_pair(change.old, change.new, intent))  # fmt: skip


def _pair(old: Any, new: Any, intent: IntentChange) -> tuple[str, str]:
    """Return two values without the intent's name, its team and content digests."""
    if isinstance(old, str) and isinstance(new, str) and DIGEST(old) and DIGEST(new):
        return ("#", "#")
    return _neutral(old, intent), _neutral(new, intent)


def _neutral(value: Any, intent: IntentChange) -> str:
    if value is ABSENT:
        return ""
    text = repr(value)
    names = {intent.item.name, *(name for key in (intent.key, intent.old_key) if key for name in (key.name, key.team))}
    for name in sorted(names - {""}):
        if name in text:
            text = placeholder(text, name)
    return text
