"""The record of a diff: whole values, all lines and all objects, nothing grouped. It is the artifact of a comment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from avactl.base.terminal import inert_text, visible_text
from avactl.base.yaml_output import dump
from avactl.change.diff import phrases
from avactl.change.diff.fields import bounded_opcodes
from avactl.change.diff.model import ABSENT, Diff, FieldChange, IntentChange, ObjectChange
from avactl.change.diff.secrets import mask_credentials
from avactl.change.diff.text import render_text

_OPERATION_SIGNS = {"created": "+", "deleted": "-", "kept": "="}


def render_record(diff: Diff) -> str:
    """Return the diff as text, and then everything that it shortens."""
    lines = [line for intent in diff.intents for line in _intent_lines(intent, phrases.spans_clusters(diff))]
    if not lines:
        return render_text(diff)
    body = "\n".join(map(visible_text, lines))
    return f"{render_text(diff)}\n{'=' * 100}\nEvery change in full\n\n{inert_text(body)}\n"


def _intent_lines(intent: IntentChange, several: bool) -> Iterator[str]:
    was = f", was {intent.old_key}" if intent.old_key else ""
    yield f"{intent.key} {intent.op}{was}"
    for consequence in intent.consequences:
        yield f"  {consequence.text}"
        yield from (f"      {line}" for line in consequence.lines)
    if intent.op in ("added", "repaired"):
        yield "  spec"
        yield from (f"    + {line}" for line in _value_lines(intent.item.doc.value))
    for field in intent.spec:
        yield from _field_lines(field)
    for change in intent.objects:
        yield from _object_lines(change, several)
    yield ""


def _object_lines(change: ObjectChange, several: bool) -> Iterator[str]:
    on = f" on {change.id.cluster}" if several else ""
    was = f", was {change.old_id}" if change.old_id else ""
    yield f"  {phrases.MARKS[change.op]} {change.id}{on}{was}" + (f"   ({change.reason})" if change.reason else "")
    if change.op in _OPERATION_SIGNS and change.manifest is not None:
        yield from (f"    {_OPERATION_SIGNS[change.op]} {line}" for line in _value_lines(change.manifest.body))
    for field in change.fields:
        yield from _field_lines(field)


def _field_lines(change: FieldChange) -> Iterator[str]:
    patch = f" (patch {change.patch})" if change.patch else ""
    yield f"    {change.path} {change.op}{patch}"
    yield from (f"      {line}" for line in value_lines(change))


def value_lines(change: FieldChange) -> Iterator[str]:
    """Yield the whole old and new value, with `-` and `+` in front; equal lines are shown once."""
    old, new = ([] if value is ABSENT else _value_lines(value) for value in (change.old, change.new))
    if old == new:  # they differ in their type, or are credentials
        old, new = ([orjson.dumps(value, default=str).decode()] for value in (change.old, change.new))
    for op, i, i_end, j, j_end in bounded_opcodes(old, new):
        if op == "equal":
            yield from (f"  {line}" for line in old[i:i_end])
        else:
            yield from (f"- {line}" for line in old[i:i_end])
            yield from (f"+ {line}" for line in new[j:j_end])


def _value_lines(value: Any) -> list[str]:
    """Return all lines of a value without credentials: a text as it is, mappings and lists as YAML."""
    value = mask_credentials(value)
    if isinstance(value, str):
        return value.split("\n")
    if isinstance(value, dict):
        return dump(value).splitlines()
    if isinstance(value, list):
        return dump({"list": value}).splitlines()[1:] if value else ["[]"]
    return [orjson.dumps(value).decode()]
