"""Consequences of a change, in the terms of the spec's owner."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.base.terminal import join_words
from avactl.change.diff import phrases
from avactl.change.diff.model import Consequence, Disruption, ObjectChange
from avactl.change.diff.rules import DEFERRED
from avactl.program import registry
from avactl.program.program import Item
from avactl.program.registry import ObjectEffect

WORKLOADS = ("Job", "StatefulSet", "Deployment", "LeaderWorkerSet", "DisaggregatedSet", "DaemonSet", "CronJob", "Pod")

_IN_GENERAL = {
    Disruption.NONE: "none of its objects changes",
    Disruption.METADATA: "labels and annotations only",
    Disruption.IN_PLACE: "updated in place",
    Disruption.POD_RESTART: "pods restart",
}


def data_consequences(old: Item | None, new: Item | None, objects: Sequence[ObjectChange]) -> list[Consequence]:
    """Return the consequences for data: loss first, then data that is kept."""
    found = []
    for change in objects:
        if change.disruption == Disruption.DATA_LOSS:
            found.append(Consequence("data", _describe_loss(change), "danger"))
        elif change.op == "kept":
            runs = "  and keeps running" if change.id.kind in WORKLOADS else ""
            text = f"{change.id} is kept{runs}: it holds data and is never deleted"
            found.append(Consequence("data", text, "warning"))
        elif change.op == "renamed" and change.id.kind == "PersistentVolumeClaim" and change.reason:
            found.append(Consequence("data", f"{change.id.kind} {change.reason}", "warning"))
    if found and new is not None and old is not None and new.spec_name != old.spec_name and _may_keep(new):
        text = f"to keep its objects and data, set metadata.objectName: {old.name}"
        found.append(Consequence("data", text))
    return sorted(found, key=lambda consequence: consequence.level != "danger")


def _may_keep(item: Item) -> bool:
    """Return whether a renamed spec could have kept its objects, but does not."""
    return item.resource.SCOPE == "team" and item.resource.metadata.object_name is None


def _describe_loss(change: ObjectChange) -> str:
    if change.op == "deleted":
        return f"deletes {change.id} {change.reason}"
    if change.op == "renamed":
        return change.reason
    worst = [field for field in change.fields if field.disruption == Disruption.DATA_LOSS]
    what = ", ".join(f"{field.path.rpartition('.')[2]} {phrases.show_move(field.old, field.new)}" for field in worst)
    return f"{change.id}, {what}: {change.reason}"


def run(old: Item | None, new: Item | None, objects: Sequence[ObjectChange]) -> list[Consequence]:
    """Return the consequences for running pods. A new spec has none."""
    if old is None:
        return []
    if new is None:
        stopped = sorted({change.id.kind for change in objects if change.op == "deleted"} & set(WORKLOADS))
        return [Consequence("run", "its pods are stopped", "warning")] if stopped else []
    if objects and all(change.disruption == Disruption.DATA_LOSS for change in objects):
        return []
    if old.key != new.key and not any(change.op == "renamed" for change in objects):
        return [Consequence("run", "its objects and data are kept")]
    phrase = registry.get_kind(new.kind).impact(
        old, new, [_object_effect(change) for change in objects]
    ) or _summarize_objects(objects)
    worst = max((change.disruption for change in objects), default=Disruption.NONE)
    return [Consequence("run", phrase, "warning" if worst >= Disruption.POD_RESTART else "info")]


def _object_effect(change: ObjectChange) -> ObjectEffect:
    return ObjectEffect(
        kind=change.id.kind,
        name=change.id.name,
        renamed=change.op == "renamed",
        starts_pods=change.disruption >= Disruption.POD_RESTART or change.op == "created",
        loses_data=change.disruption == Disruption.DATA_LOSS,
    )


def _summarize_objects(objects: Sequence[ObjectChange]) -> str:
    # Data loss is reported separately and more prominently.
    objects = [change for change in objects if change.disruption != Disruption.DATA_LOSS]
    worst = max((change.disruption for change in objects), default=Disruption.NONE)
    if worst < Disruption.REPLACE:
        if worst == Disruption.NONE and any(change.op in ("created", "kept") for change in objects):
            return "running pods are not affected"
        deferred = {change.reason for change in objects if change.disruption == Disruption.IN_PLACE} & DEFERRED
        if worst == Disruption.IN_PLACE and deferred:
            return f"{_IN_GENERAL[worst]}, {', '.join(sorted(deferred))}"
        return _IN_GENERAL[worst]
    if any(change.op == "renamed" for change in objects):
        return "its objects are recreated under the new name"
    refused = [change.id.kind for change in objects if change.refused]
    kinds = [c.id.kind for c in objects if c.op == "changed" and c.disruption >= Disruption.REPLACE and not c.refused]
    gone = [c.id.kind for c in objects if c.op == "deleted" and c.disruption >= Disruption.REPLACE]
    parts = []
    if refused:
        parts.append(f"{_list(refused)} immutable and protected: the apply stops here")
    if kinds:
        parts.append(f"{_list(kinds)} recreated")
    if gone:
        parts.append(f"{_list(gone)} deleted")
    if any(change.disruption == Disruption.POD_RESTART for change in objects):
        parts.append("pods restart")
    return ", ".join(parts)


def _list(words: Sequence[str]) -> str:
    return join_words(sorted(set(words)))


def policy_consequences(old: Item | None, new: Item | None) -> list[Consequence]:
    """Return the consequence of a changed deletion policy, which takes effect when the spec is deleted."""
    if old is None or new is None:
        return []
    was, now = (getattr(item.spec, "deletion_policy", None) for item in (old, new))
    if was == now:
        return []
    if now == "delete":
        return [Consequence("data", "its data will be deleted together with the spec", "warning")]
    return [Consequence("data", "its data will be kept when the spec is deleted")]
