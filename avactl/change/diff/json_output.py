"""A diff as JSON. The schema is documented in docs/diff.md and is stable: keys are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avactl.base.object_identity import ObjectId
from avactl.base.terminal import json_output
from avactl.change.diff.model import ABSENT, Diff, FieldChange, IntentChange, ObjectChange
from avactl.diagnostics import Diagnostic

VERSION = 1


def render_json(diff: Diff, *, objects: bool = True) -> str:
    """Return the whole diff; nothing is truncated or grouped."""
    data = {
        "version": VERSION,
        "disruption": str(diff.disruption),
        "counts": {
            "intents": dict(sorted(diff.intent_counts.items())),
            "objects": dict(sorted(diff.object_counts.items())),
        },
        "intents": [_intent_data(intent, objects) for intent in diff.intents],
        "warnings": [_problem_data(d) for d in diff.warnings],
        "baseProblems": [_problem_data(d) for d in diff.base_problems],
    }
    return json_output(data)


def render_problems(problems: Sequence[Diagnostic]) -> str:
    """Return the output for a head with errors: the problems, and no `intents`."""
    return json_output(
        {"version": VERSION, "problems": [{**_problem_data(d), "severity": d.severity} for d in problems]}
    )


def _problem_data(d: Diagnostic) -> dict[str, Any]:
    return {"code": d.code, "file": d.span.file, "line": d.span.line, "message": d.message, "hint": d.hint}


def _intent_data(intent: IntentChange, objects: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": intent.key.kind,
        "team": intent.key.team or None,
        "name": intent.key.name,
        "change": intent.op,
        "disruption": str(intent.disruption),
        "clusters": list(intent.clusters),
        "file": intent.file,
        "line": intent.line,
        "facts": [{"name": fact.name, **_change_values(fact.old, fact.new)} for fact in intent.facts],
        "spec": [_field_data(change) for change in intent.spec],
        "consequences": [
            {"topic": c.topic, "level": c.level, "text": c.text, **({"lines": list(c.lines)} if c.lines else {})}
            for c in intent.consequences
        ],
    }
    if intent.old_key:
        data["was"] = {"team": intent.old_key.team or None, "name": intent.old_key.name}
    if not intent.objects_known:
        data["objectsKnown"] = False
    if objects:
        data["objects"] = [_object_data(change) for change in intent.objects]
    return data


def _object_data(change: ObjectChange) -> dict[str, Any]:
    data: dict[str, Any] = {
        **_id_data(change.id),
        "change": change.op,
        "disruption": str(change.disruption),
        "reason": change.reason,
        "fields": [
            {
                **_field_data(field),
                "disruption": str(field.disruption),
                "reason": field.reason,
                **({"patch": field.patch} if field.patch else {}),
            }
            for field in change.fields
        ],
    }
    if change.old_id:
        data["was"] = _id_data(change.old_id)
    return data


def _id_data(id: ObjectId) -> dict[str, Any]:
    return {"cluster": id.cluster, **id.key._asdict(), "namespace": id.namespace or None}


def _field_data(change: FieldChange) -> dict[str, Any]:
    notation = {"notation": True} if change.notation else {}
    return {"path": change.path, "change": change.op, **_change_values(change.old, change.new), **notation}


def _change_values(old: Any, new: Any) -> dict[str, Any]:
    """Return both values; the key of a missing one is omitted."""
    return {name: value for name, value in (("old", old), ("new", new)) if value is not ABSENT}
