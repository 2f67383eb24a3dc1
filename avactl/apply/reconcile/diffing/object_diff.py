"""Compare a desired object with the live one, field by field, by field ownership.

`managedFields` lists the fields that our last apply set. A field changed by another manager since is no longer ours,
so a field that is still ours can differ only because git changed. Defaults, and fields that other managers added, are
not differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from avactl.apply.reconcile.diffing import managed_fields
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.managed_fields import ABSENT, FieldOwner, Fields, Path
from avactl.base.quantity import parse_quantity
from avactl.kube.object_client import FIELD_MANAGER
from avactl.program import kubernetes_schema


class Difference(NamedTuple):
    """One field that differs from git."""

    path: Path
    old: Any
    new: Any
    by: str = ""
    """The field's current manager; empty: none."""

    @property
    def field(self) -> str:
        """Return the path as text."""
        return managed_fields.format_path(self.path)


@dataclass(slots=True)
class ObjectComparison:
    """The changes that make a live object match git."""

    apply: list[Difference] = field(default_factory=list)
    """Fields that an apply sets or removes."""
    take_out: list[Difference] = field(default_factory=list)
    """Fields that were added by hand."""
    hand_over: list[Path] = field(default_factory=list)
    """Fields that were ours and now belong to a controller: they keep their values."""
    unsure: bool = False
    """All differences may be two notations of one value; only a dry-run apply can tell."""

    @property
    def same(self) -> bool:
        return not (self.apply or self.take_out or self.hand_over)

    def all(self) -> list[Difference]:
        """Return every difference."""
        return [*self.apply, *self.take_out]


def compare(want: Mapping[str, Any], live: Mapping[str, Any], leave: Sequence[Path], hands: Hands) -> ObjectComparison:
    """Compare `want`, which has no controller-owned fields (`leave`), with the live object."""
    walk = _Walk(want, live, leave)
    ours = managed_fields.applied_fields(live)
    for key, value in want.items():
        if key in ("apiVersion", "kind"):
            continue
        inner = ours.get(f"f:{key}") if ours is not None else None
        if key == "metadata":
            value = {name: part for name, part in value.items() if name not in ("name", "namespace")}
        walk.value(value, live.get(key, ABSENT), inner, (f"f:{key}",))
    walk.gone(want, live, ours or {}, ())
    result = walk.result
    result.unsure = bool(result.apply) and walk.certain == 0
    _by_hand(want, live, ours or {}, leave, hands, walk.owners, result)
    return result


class _Walk:
    def __init__(self, want: Mapping[str, Any], live: Mapping[str, Any], leave: Sequence[Path]) -> None:
        self.result = ObjectComparison()
        self.certain = 0
        self.owners = managed_fields.field_owners(live)
        self._leave = frozenset(leave)
        self._want = want
        self._known = kubernetes_schema.find(str(want.get("apiVersion")), str(want.get("kind"))) is not None

    def _is_quantity(self, path: Path) -> bool:
        """Return whether the API server may write a value as another notation of the same quantity."""
        steps = [step[2:] for step in path]
        if self._known:
            return kubernetes_schema.is_quantity(self._want, steps)
        # Controllers of other kinds normalise what their types call a quantity.
        return steps[0] not in ("metadata", "data") and not _QUANTITY_FIELDS.isdisjoint(steps)

    def _differs(self, path: Path, old: Any, new: Any, *, maybe: bool = False) -> None:
        by = next(
            (o.manager for o in self.owners if o.manager != FIELD_MANAGER and managed_fields.has_path(o.fields, path)),
            "",
        )
        self.result.apply.append(Difference(path, old, new, by))
        self.certain += not maybe

    def value(self, want: Any, live: Any, ours: Fields | None, path: Path) -> None:
        if isinstance(want, dict):
            if not isinstance(live, dict):
                if want or live is not ABSENT:
                    self._differs(path, live, want)
            elif not want:
                pass  # whatever it has is not ours
            elif ours is not None and (not ours or ours.keys() == {"."}):
                self._whole(want, live, path)
            else:
                for key, inner in want.items():
                    step = f"f:{key}"
                    self.value(
                        inner, live.get(key, ABSENT), ours.get(step) if ours is not None else None, (*path, step)
                    )
                if ours is not None:
                    self.gone(want, live, ours, path)
        elif isinstance(want, list):
            self._list(want, live, ours, path)
        elif want is None:
            if live is not ABSENT and live is not None:
                self._differs(path, live, want)
        elif live is ABSENT or ours is None:
            # The API server drops empty values.
            if ours is None or want not in ("", 0, False):
                self._differs(path, live, want)
        elif not _is_equal(want, live):
            same = _same_scalar(want, live, self._is_quantity(path))
            if same is not True:
                self._differs(path, live, want, maybe=same is None)

    def gone(self, want: Mapping[str, Any], live: Any, ours: Fields, path: Path) -> None:
        """Record the fields that our last apply set and git no longer has."""
        for step, below in ours.items():
            key = step[2:]
            if step == "." or key in want:
                continue
            here = (*path, step)
            old = managed_fields.child_at(live, step)[1]
            if not any(here[: len(owned)] == owned for owned in self._leave):
                self._differs(here, old, ABSENT, maybe=old is ABSENT and not below)
            elif old is not ABSENT:
                self.result.hand_over.append(here)

    def _whole(self, want: Any, live: Any, path: Path) -> None:
        """Compare an atomic value, of which no other manager can own a part: it differs only if git changed it."""
        fits = _is_contained(want, live, False)
        if fits is not True:
            self._differs(path, live, want, maybe=fits is None)

    def _list(self, want: list[Any], live: Any, ours: Fields | None, path: Path) -> None:
        if not want and (live is ABSENT or live == []):
            return
        if not isinstance(live, list) or ours is None:
            self._differs(path, live, want)
            return
        steps = [step for step in ours if step != "."]
        if not steps:
            self._whole(want, live, path)
            return
        keyed = {key: step for step in steps if (key := _entry_key(step)) is not None}
        names = tuple(orjson.loads(steps[0][2:])) if steps[0].startswith("k:") else ()
        seen: set[str] = set()
        last, ordered = -1, True
        for entry in want:
            found = keyed.get(_key_of(entry, names))
            if found is None:
                step = _step_of(entry, names)
                self._differs((*path, step), managed_fields.child_at(live, step)[1], entry)
                continue
            seen.add(found)
            index, there = managed_fields.child_at(live, found)
            if there is ABSENT:
                self._differs((*path, found), ABSENT, entry)
                continue
            if isinstance(index, int):
                ordered, last = ordered and index > last, index
            if names:
                self.value(entry, there, ours[found], (*path, found))
        for step in steps:
            if step not in seen:
                self._differs((*path, step), managed_fields.child_at(live, step)[1], ABSENT)
        if not ordered and len(seen) == len(want):
            self._differs(path, live, want, maybe=True)


@lru_cache(maxsize=8192)
def _entry_key(step: str) -> tuple[Any, ...] | None:
    """Return the key of a list entry from its path step."""
    if step.startswith("k:"):
        return tuple(orjson.loads(step[2:]).values())
    return (orjson.loads(step[2:]),) if step.startswith("v:") else None


def _key_of(entry: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not names:
        return (entry,) if not isinstance(entry, dict | list) else ()
    return tuple(entry.get(name, "TCP" if name == "protocol" else None) for name in names)


def _step_of(entry: Any, names: tuple[str, ...]) -> str:
    if not names:
        return "v:" + orjson.dumps(entry).decode()
    return "k:" + orjson.dumps(dict(zip(names, _key_of(entry, names), strict=True))).decode()


def _is_equal(want: Any, live: Any) -> bool:
    return bool(want == live) and isinstance(want, bool) == isinstance(live, bool)


_QUANTITY_FIELDS = frozenset(
    ("requests", "limits", "hard", "capacity", "sizeLimit", "storage", "default", "defaultRequest", "min", "max")
)
"""Parents of quantities, which the API server normalises: `1024Mi` becomes `1Gi`."""


def _same_scalar(want: Any, live: Any, amount: bool) -> bool | None:
    """Return whether two scalars are equal; None: only a dry-run apply can tell."""
    if _is_equal(want, live):
        return True
    if isinstance(want, bool) or isinstance(live, bool) or not isinstance(live, str | int):
        return False
    if amount:
        try:
            return parse_quantity(want) == parse_quantity(live)
        except ValueError:
            return False
    # Durations and numbers as text, which some kinds normalise.
    short = str(want)
    return None if len(short) < 30 and short[:1].isdigit() and str(live)[:1].isdigit() else False


_DEFAULTS: frozenset[tuple[str, Any]] = frozenset(
    [
        ("protocol", "TCP"),
        ("apiVersion", "v1"),
        ("divisor", "0"),
        ("expirationSeconds", 3600),
        ("defaultMode", 420),
        ("successThreshold", 1),
        ("scheme", "HTTP"),
        ("operator", "Equal"),
        ("type", ""),
        ("volumeMode", "Filesystem"),
        ("kind", "PersistentVolumeClaim"),
        ("scope", "*"),
        ("matchPolicy", "Equivalent"),
    ]
)
"""Defaults that the API server adds inside atomic values."""


def _is_contained(want: Any, live: Any, amount: bool) -> bool | None:
    """Return whether a value equals the declared one except for defaults; None: only a dry-run apply can tell."""
    if isinstance(want, dict):
        if not isinstance(live, dict):
            return not want and live is ABSENT
        sure: bool | None = True
        for key, inner in want.items():
            fits = _is_contained(inner, live.get(key, ABSENT), amount or key in _QUANTITY_FIELDS)
            if fits is False:
                return False
            sure = sure and fits
        for key in live.keys() - want.keys() - {"status"}:
            value = live[key]
            if key == "default" and value == live.get("max"):
                continue  # from a LimitRange
            if value not in ({}, [], "") and (not isinstance(value, str | int) or (key, value) not in _DEFAULTS):
                sure = None
        return sure
    if isinstance(want, list):
        if not isinstance(live, list):
            return not want and live is ABSENT
        if len(want) != len(live):
            return False
        sure = True
        for one, other in zip(want, live, strict=True):
            fits = _is_contained(one, other, amount)
            if fits is False:
                return False
            sure = sure and fits
        return sure
    if live is ABSENT:
        return want is None or want in ("", 0, False)
    return _same_scalar(want, live, amount)


def _by_hand(
    want: Mapping[str, Any],
    live: Mapping[str, Any],
    ours: Fields,
    leave: Sequence[Path],
    hands: Hands,
    owners: Sequence[FieldOwner],
    result: ObjectComparison,
) -> None:
    """Record the fields that were added by hand to an object."""
    found: dict[Path, str] = {}
    for owner in owners:
        if owner.subresource == "status" or owner.manager == FIELD_MANAGER:
            continue
        for path in managed_fields.leaf_paths(owner.fields):
            if not hands.changed(owner.manager, path) or any(path[: len(left)] == left for left in leave):
                continue
            if managed_fields.find(live, path) is ABSENT:
                continue
            short = _first_absent(want, path)
            if short is None:
                continue
            if path[0] == "f:metadata":
                short = path
            # Fields that a controller owns, too, stay, and so do the entries that contain them.
            others = [o.fields for o in owners if not _is_hand(hands, o, path) and o.manager != FIELD_MANAGER]
            while any(managed_fields.has_path(other, short) for other in others) and short != path:
                short = path[: len(short) + 1]
            if any(managed_fields.has_path(other, short) for other in others):
                continue
            found.setdefault(short, owner.manager)
    for path, manager in sorted(found.items(), key=lambda entry: len(entry[0])):
        if not any(path[:length] in found for length in range(1, len(path))):
            result.take_out.append(Difference(path, managed_fields.find(live, path), ABSENT, manager))


def rival_entries(
    want: Mapping[str, Any], live: Mapping[str, Any], differences: Sequence[Difference]
) -> list[Difference]:
    """Return the entries of any manager that git lacks, in the lists that differ: they can exclude what git adds.

    A Service cannot have two ports of one name, for example, whoever has added the other one.
    """
    rivals: dict[Path, Difference] = {}
    for owner in managed_fields.field_owners(live):
        if owner.subresource == "status" or owner.manager == FIELD_MANAGER:
            continue
        for path in managed_fields.leaf_paths(owner.fields):
            short = _first_absent(want, path)
            if short is None or not short[-1].startswith("k:"):
                continue
            entries, old = short[:-1], managed_fields.find(live, short)
            near = any(entries == d.path[:-1] or entries[: len(d.path)] == d.path for d in differences)
            if near and old is not ABSENT:
                rivals.setdefault(short, Difference(short, old, ABSENT, owner.manager))
    return list(rivals.values())


def _is_hand(hands: Hands, owner: FieldOwner, path: Path) -> bool:
    return hands.changed(owner.manager, path)


def _first_absent(want: Any, path: Path) -> Path | None:
    """Return the shortest prefix of a path that git does not have; None if git has all of it or an atomic parent."""
    for length, step in enumerate(path, 1):
        want = managed_fields.child_at(want, step)[1]
        if want is ABSENT:
            return path[:length]
        if isinstance(want, list) and length < len(path) and not path[length].startswith(("k:", "v:", "i:")):
            return None
    return None
