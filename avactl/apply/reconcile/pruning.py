"""Objects that git no longer has and that must stay while an object that git has could not be applied. Pure.

Real dependencies are few: a rejected object that is the pruned one under a new name, and what a rejected object, whose
old version runs on, or a pruned one that stays still needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from avactl.apply.reconcile.actions import Action, ReconcileStep
from avactl.apply.reconcile.diffing.managed_fields import ABSENT, Fields, applied_fields, child_at
from avactl.base.object_identity import ObjectKey
from avactl.compiler.rename import Candidate, content_leaves, match_renames
from avactl.program.dependencies import dependencies
from avactl.program.kubernetes_schema.templates import value_at
from avactl.program.manifest import templates_of
from avactl.spec.documents.document import nested_strings

_NAME, _INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
"""Labels of the objects of a spec: its kind and its name."""


def held_back(steps: Sequence[ReconcileStep]) -> dict[ObjectKey, str]:
    """Return the objects that a run must not prune, each with the reason, once its applies have ended."""
    failed = [step for step in steps if step.error and step.wanted is not None]
    pruned = {step.key: step.live for step in steps if step.action is Action.prune and step.live is not None}
    if not failed or not pruned:
        return {}
    held = _replaced_by_rejected(steps, pruned)
    held |= {key: why for key, why in _replaced_by_another_kind(steps, pruned).items() if key not in held}
    ahead = [(step.title, step.live) for step in failed if step.live is not None]
    ahead += [(str(key), pruned[key]) for key in held]
    # The other objects of its spec, such as the Service of a Deployment; its pods have a replacement of their own.
    specs = {_spec_of(key, pruned[key]): str(key) for key in held}
    for key, body in pruned.items():
        if key not in held and not templates_of(body) and (other := specs.get(_spec_of(key, body))):
            held[key] = f"of the same spec as {other}"
            ahead.append((str(key), body))
    while ahead:
        title, body = ahead.pop()
        named = _named_by(body)
        needed = {key for key in dependencies(body) if key in pruned}
        needed.update(
            key
            for key, other in pruned.items()
            # Runs are named by nothing that needs them, and must not go on beside their replacement.
            if not templates_of(other)
            and key.namespace in ("", body["metadata"].get("namespace", ""))
            and not named.isdisjoint(_names_made(key, other))
        )
        for key in sorted(needed - held.keys(), key=str):
            held[key] = f"needed by {title}"
            ahead.append((str(key), pruned[key]))
    return held


def _named_by(body: Mapping[str, Any]) -> set[str]:
    """Return the texts in an object, of which some are names: Secrets, Services and others are named in many places."""
    parts = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    return {text for _, text, is_key in nested_strings(parts) if not is_key}


def _names_made(key: ObjectKey, body: Mapping[str, Any]) -> set[str]:
    """Return the name of an object, and that of the Secret that a controller makes of it."""
    made = (value_at(body, path).get("name") for path in (("spec", "target"), ("spec", "template", "metadata")))
    return {key.name, *(name for name in made if isinstance(name, str))}


def _replaced_by_another_kind(
    steps: Sequence[ReconcileStep], pruned: Mapping[ObjectKey, Mapping[str, Any]]
) -> dict[ObjectKey, str]:
    """Return the pruned objects of a spec with a rejected new object, unless one of their kind was applied for it."""
    new = [step for step in steps if step.wanted is not None and step.live is None]
    rejected: dict[tuple[str, ...], str] = {}
    applied: set[tuple[tuple[str, ...], str, str]] = set()
    for step in new:
        assert step.wanted is not None
        for unit in (_spec_of(step.key, step.wanted.body), (step.key.namespace, step.key.name)):
            if step.error:
                rejected.setdefault(unit, step.title)
            else:
                applied.add((unit, step.key.group, step.key.kind))
    held = {}
    for key, body in pruned.items():
        for unit in (_spec_of(key, body), (key.namespace, key.name)):
            if unit in rejected and (unit, key.group, key.kind) not in applied:
                held[key] = f"{rejected[unit]}, which may replace it, could not be applied"
    return held


def _replaced_by_rejected(
    steps: Sequence[ReconcileStep], pruned: Mapping[ObjectKey, Mapping[str, Any]]
) -> dict[ObjectKey, str]:
    """Return the pruned objects whose replacement could not be created.

    An object without a new one of similar content waits for every rejected one of its kind that may be its replacement:
    in its namespace, or of its name in another one.
    """
    new = {step.key: step for step in steps if step.wanted is not None and step.live is None}
    renames = match_renames(
        [Candidate(key, (key.group, key.kind), _content(body, _owned_part(body))) for key, body in pruned.items()],
        [
            Candidate(key, (key.group, key.kind), _content(s.wanted.body, s.wanted.body))
            for key, s in new.items()
            if s.wanted
        ],
    )
    replaced = {old: fresh for fresh, old in renames.items()}
    rejected = [key for key, step in new.items() if step.error]
    held: dict[ObjectKey, str] = {}
    for key in pruned:
        fresh = replaced.get(key)
        candidates = [
            other for other in rejected if other == fresh or (fresh is None and _may_replace(other, key, renames))
        ]
        if candidates:
            held[key] = f"{new[candidates[0]].title}, which may replace it, could not be applied"
    return held


def _may_replace(fresh: ObjectKey, old: ObjectKey, renames: Collection[object]) -> bool:
    near = fresh.namespace == old.namespace or fresh.name == old.name
    return fresh not in renames and near and (fresh.group, fresh.kind) == (old.group, old.kind)


def _content(body: Mapping[str, Any], part: Mapping[str, Any]) -> frozenset[str]:
    """Return the leaves of an object's content, without the names of its spec and of itself."""
    labels = body["metadata"].get("labels") or {}
    data = {key: value for key, value in part.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    return content_leaves(data, labels.get(_INSTANCE) or body["metadata"]["name"])


def _owned_part(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a live object that our last apply has set: all but the API server's defaults."""
    ours = applied_fields(live)
    part: dict[str, Any] = _project(live, ours) if ours else dict(live)
    return part


def _project(value: Any, fields: Fields) -> Any:
    steps = [step for step in fields if step != "."]
    if not steps:
        return value
    found = [
        (key, _project(inner, fields[step]))
        for step in steps
        for key, inner in [child_at(value, step)]
        if inner is not ABSENT
    ]
    return dict(found) if isinstance(value, dict) else [inner for _, inner in found]


def _spec_of(key: ObjectKey, body: Mapping[str, Any]) -> tuple[str, ...]:
    labels = body["metadata"].get("labels") or {}
    return (key.namespace, labels[_NAME], labels[_INSTANCE]) if {_NAME, _INSTANCE} <= labels.keys() else tuple(key)
