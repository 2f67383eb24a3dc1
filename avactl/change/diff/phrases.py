"""Text for changes, shared by the text and Markdown printers. Not escaped or coloured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from avactl.base.equality import is_same
from avactl.base.terminal import visible_text
from avactl.change.diff.model import ABSENT, Diff, FactChange, FieldChange, IntentChange, IntentOp, ObjectChange

_MAX_VALUE_WIDTH = 72
"""Longest value shown in full, in characters."""

_CONTEXT_WIDTH = 12
"""Equal characters shown around a difference of long values."""

MARKS = {"created": "+", "changed": "~", "deleted": "-", "renamed": ">", "kept": "="}
"""Sign in front of an object."""


def show_value(value: Any, width: int = _MAX_VALUE_WIDTH) -> str:
    """Return a value on one line, shortened if it is longer than `width`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return shorten_middle(_show_mapping(value), width)
    if isinstance(value, list):
        value = ", ".join(map(_show_nested, value)) or "[]"
    text = str(value)
    if "\n" in text.rstrip("\n"):
        first, _, rest = text.partition("\n")
        return f"{shorten_middle(first)} … ({rest.count(chr(10)) + 2} lines)"
    image = _PINNED_IMAGE(text)
    if image:  # two digests never look alike: they are shown in full
        return f"{shorten_middle(image[1])}@{image[2]}"
    line = text.removesuffix("\n")  # as most files end
    plain = line == line.strip() and line.isprintable() and line not in ("", '""')
    return shorten_middle(line if plain else quote_value(text), width)


def join_values(values: Any) -> str:
    """Return the entries of a list in words; a value that is no list as it is."""
    return ", ".join(map(show_value, values)) if isinstance(values, list) else show_value(values) if values else ""


def _show_mapping(value: dict[str, Any]) -> str:
    """Return the values of a mapping; its name is already in the path."""
    own = {key: inner for key, inner in value.items() if key != "name" and inner not in ({}, [], "", None)}
    if own.keys() == {"value"}:
        return show_value(own["value"])
    plain = [f"{key} {show_value(inner)}" for key, inner in own.items() if not isinstance(inner, dict | list)]
    parts = plain + [f"{key} {_show_nested(inner)}" for key, inner in own.items() if isinstance(inner, dict | list)]
    return ", ".join(parts) or ("{}" if "name" not in value else show_value(value["name"]))


def _show_nested(value: Any) -> str:
    """Return a value inside of another one; mappings and lists are whole."""
    if isinstance(value, list):
        return f"[{', '.join(map(_show_nested, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} {_show_nested(inner)}' for key, inner in value.items())}}}"
    return show_value(value)


def shorten_middle(text: str, width: int = _MAX_VALUE_WIDTH) -> str:
    """Shorten a text to about `width` characters in the middle, where values differ least, and say how long it is."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[:half]}…{text[-half:]} ({len(text):,} characters)"


_PINNED_IMAGE = re.compile(r"([a-z0-9][A-Za-z0-9._:/-]{0,500})@(sha256:[0-9a-f]{64})").fullmatch
_IMAGE = re.compile(r"([a-z0-9][a-z0-9._:/-]*?)(?:@sha256:([0-9a-f]{64})|:([\w.-]+))").fullmatch
_AMOUNT_WITH_UNIT = re.compile(r"([0-9][0-9.,]*(?:(?: to |–)[0-9][0-9.,]*)?) (\S.*)").fullmatch


def show_move(old: Any, new: Any) -> str:
    """Return `old → new`, with a common unit or prefix written once."""
    if old is ABSENT:
        return f"none → {show_value(new)}"
    if new is ABSENT:
        return f"{show_value(old)} → none"
    if isinstance(old, str) and isinstance(new, str):
        one, other = _IMAGE(old), _IMAGE(new)
        if one and other and one[1] == other[1] and "/" in one[1]:
            name = one[1].rpartition("/")[2]
            return f"{name}{_image_tag(one)} → {_image_tag(other)}"
        one, other = _AMOUNT_WITH_UNIT(old), _AMOUNT_WITH_UNIT(new)
        if one and other and one[2] == other[2]:
            return f"{one[1]} → {other[1]} {one[2]}"
    was, now = show_value(old), show_value(new)
    if is_same(old, new):
        return f"{was} → {now}"
    texts = isinstance(old, str) and isinstance(new, str) and not (_PINNED_IMAGE(old) and _PINNED_IMAGE(new))
    if texts and _is_long(old) and _is_long(new) and (old + new).isprintable():
        return _where_differs(old, new)
    return _where_differs(quote_value(old), quote_value(new)) if _look_alike(was, now) else f"{was} → {now}"


def _image_tag(image: re.Match[str]) -> str:
    return f"@{image[2]}" if image[2] else f":{image[3]}"


def _look_alike(one: str, other: str) -> bool:
    """Return whether two texts cannot be told apart when shown."""
    return visible_text(one).strip() == visible_text(other).strip()


def quote_value(value: Any) -> str:
    """Return a value as JSON, with escapes for characters that are not shown."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)


def _is_long(text: str) -> bool:
    return len(text) > _MAX_VALUE_WIDTH and "\n" not in text


def is_long(change: FieldChange) -> bool:
    """Return whether a changed value may be shortened."""
    return any(len(str(value)) > _MAX_VALUE_WIDTH for value in (change.old, change.new))


def _where_differs(old: str, new: str) -> str:
    """Return two long texts without what they share at the start and at the end, except for some characters."""
    start = _common_start(old, new)
    end = _common_start(old[start:][::-1], new[start:][::-1])
    start, end = max(0, start - _CONTEXT_WIDTH), max(0, end - _CONTEXT_WIDTH)
    before, after = "…" if start else "", "…" if end else ""
    parts = (f"{before}{shorten_middle(text[start : len(text) - end])}{after}" for text in (old, new))
    return " → ".join(parts) + f" (of {len(old):,} → {len(new):,} characters)"


def _common_start(one: str, other: str) -> int:
    """Return the length of the common start of two texts."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def show_fact(change: FactChange) -> str:
    """Return a headline fact: `workers 2 → 4`, or `workers 4` for a new or removed spec."""
    # `32 V100` already names what is counted.
    values = [value for value in (change.old, change.new) if value is not ABSENT]
    counted = change.name == "GPUs" and all(isinstance(value, str) and _AMOUNT_WITH_UNIT(value) for value in values)
    name = "" if counted and len(values) == 2 else f"{change.name} "
    return f"{name}{show_move(change.old, change.new)}"


def fact_value(change: FactChange) -> str:
    """Return a fact of a spec that exists on one side only."""
    value = change.old if change.new is ABSENT else change.new
    if value is None or value is ABSENT or value == "":
        return ""
    if change.name == "GPUs" and isinstance(value, str) and _AMOUNT_WITH_UNIT(value):
        return show_value(value)
    return f"{change.name} {show_value(value)}"


def shorten_path(path: str) -> str:
    """Shorten a path by its common prefix: `spec.template.spec.containers[x]` → `containers[x]`."""
    path = re.sub(r"^spec\.jobTemplate\.spec\.", "job.", path)
    path = re.sub(r"^(?:spec\.)?template\.spec\.|^spec\.template\.spec\.", "", path)
    path = re.sub(r"^data\[(.+)\]: ", r"\1: ", path)
    return re.sub(r"^(?:spec|data)\.|^metadata\.(?=labels|annotations)", "", path)


def show_field(change: FieldChange) -> str:
    """Return one changed field on one line."""
    name = shorten_path(change.path)
    match change.op:
        case "added":
            return f"{name} new: {show_value(change.new)}"
        case "removed":
            return f"{name} removed, was {show_value(change.old)}"
        case "reordered":
            return f"{name} reordered: {show_value(change.new)}"
    if change.notation:
        name += " differs only in comments, whitespace, order or notation"
    if change.lines:
        minus = sum(line.startswith("-") for line in change.lines)
        return f"{name}: {minus} line{'' if minus == 1 else 's'} removed, {len(change.lines) - minus} added"
    if is_same(change.old, change.new):
        return f"{name} changed (masked: looks like a credential)"
    return f"{name} {show_move(change.old, change.new)}"


def shown_fields(change: ObjectChange) -> list[tuple[str, tuple[str, ...]]]:
    """Return the changed fields to show, each with the changed lines of a text.

    Digests of a configuration are omitted, because the configuration itself is shown.
    """
    shown = [each for each in change.fields if not each.digest]
    if shown or not change.fields or change.op == "renamed":
        return [(f"{show_field(each)}{_field_remarks(each)}", each.lines) for each in shown]
    return [("its configuration changes", ())]


def _field_remarks(change: FieldChange) -> str:
    return (" (* is the spec's name)" if change.general else "") + (f" (patch {change.patch})" if change.patch else "")


def intent_label(intent: IntentChange) -> str:
    """Return the label of an intent in a list: `vision/resnet50`, or `vision/old → vision/new`."""
    return f"{intent.old_key.label} → {intent.key.label}" if intent.old_key else intent.key.label


def intent_headline(intent: IntentChange, count: int = 1) -> list[str]:
    """Return the headline of an intent, or of `count` equal ones: the operation and the facts."""
    one_sided = intent.op in ("added", "removed", "repaired")
    parts = [fact_value(change) if one_sided else show_fact(change) for change in intent.facts]
    parts = [part for part in parts if part]
    first = {
        "added": "new",
        "removed": "removed",
        "repaired": "has errors in the base: counts as new",
        "renamed": f"was {intent.old_key.label}" if intent.old_key and count == 1 else "renamed",
    }.get(intent.op)
    parts = [first, *parts] if first else parts
    return parts or ([] if further_changes(intent) else ["affected indirectly"] if intent.op == "affected" else [])


_FREE_TEXT_PATH = re.compile(r"(?:^|\.)(?:env|args|command|annotations|labels|patches|objects)[.\[]").search
"""Fields whose names and values are the user's, and which no fact describes."""


def _fact_contains(fact: Any, value: Any) -> bool:
    """Return whether a fact contains a value; a missing one says that there is none."""
    if value is ABSENT or value is None or (fact is ABSENT and not value):
        return True
    return re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", str(fact)) is not None


_MEDIUM_NAMES = {"RAM": "MEM"}
"""Facts whose name differs from the list entry they describe."""


def further_changes(intent: IntentChange) -> list[str]:
    """Return the field changes of the spec that no fact covers, as text."""
    return [show_field(change) for change in uncovered_changes(intent)]


def uncovered_changes(intent: IntentChange) -> list[FieldChange]:
    """Return the field changes of the spec that no fact covers."""
    facts = [(change.name, change.old, change.new) for change in intent.facts]
    whole = tuple(f"spec.{change.name}." for change in intent.facts)
    # `V100 40 → 16` covers `gpus[V100].guaranteed`, `RAM …` the memory tier.
    entries = {f"[{_MEDIUM_NAMES.get(change.name, change.name)}]." for change in intent.facts}
    left: list[FieldChange] = []
    for change in intent.spec:
        path = f"{change.path}."
        within = path.startswith(whole) or any(entry in path for entry in entries)
        if within and any(
            _fact_contains(fact[1], change.old) and _fact_contains(fact[2], change.new) for fact in facts
        ):
            continue
        if change.op == "removed" and any(path == f"spec.{name}." and new is ABSENT for name, _, new in facts):
            continue
        same = [fact for fact in facts if (str(fact[1]), str(fact[2])) == (str(change.old), str(change.new))]
        if same and not _FREE_TEXT_PATH(path):
            # A fact covers one change only, even if another has the same numbers.
            facts.remove(next((fact for fact in same if fact[0].lower() in change.path.lower()), same[0]))
        else:
            left.append(change)
    return left


def plural_kind(kind: str, count: int) -> str:
    """Return e.g. `40 TrainingJobs`."""
    if count == 1:
        return f"1 {kind}"
    if kind.endswith("y"):
        return f"{count} {kind[:-1]}ies"
    return f"{count} {kind}{'es' if kind.endswith(('s', 'x')) else 's'}"


def join_names(labels: Iterable[str], most: int | None = None) -> str:
    """Join names; with `most`, the rest is counted."""
    listed = list(labels)
    if most is None or len(listed) <= most:
        return ", ".join(listed)
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"


def diff_summary(diff: Diff) -> str:
    """Return e.g. `1 intent changed, 2 objects (0 new, 2 changed, 0 deleted)`."""
    if diff.empty:
        return "no changes"
    of = diff.object_counts
    total = of.total()
    inner = [f"{of['created']} new", f"{of['changed']} changed", f"{of['deleted']} deleted"]
    inner += [f"{of['renamed']} renamed"] if of["renamed"] else []
    inner += [f"{of['kept']} kept"] if of["kept"] else []
    return f"{count_intents(diff)}, {total} object{'' if total == 1 else 's'} ({', '.join(inner)})"


def count_intents(diff: Diff) -> str:
    """Return e.g. `2 intents changed, 1 new`."""
    counts = diff.intent_counts
    parts: list[str] = []
    ops: tuple[IntentOp, ...] = ("changed", "added", "removed", "renamed", "repaired", "affected")
    for op in filter(counts.__getitem__, ops):
        noun = "" if parts else " intent" if counts[op] == 1 else " intents"
        parts.append(f"{counts[op]}{noun} {'new' if op == 'added' else op}")
    return ", ".join(parts)


def spans_clusters(diff: Diff) -> bool:
    """Return whether objects of more than one cluster change, so that each must name its cluster."""
    return len({change.id.cluster for intent in diff.intents for change in intent.objects}) > 1


def join_parts(parts: Sequence[str]) -> str:
    """Join the parts of one line."""
    return " · ".join(parts)
