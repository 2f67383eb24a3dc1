"""The action for each object: a pure function of git, the live objects and the inventory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from avactl.apply.reconcile.desired import (
    DELETION_POLICY,
    HOLDS_DATA,
    INVENTORY,
    PATCHED,
    Wanted,
    inventory_of,
    live_annotations,
    rank_of,
    run_of,
    terminal_condition,
    without_replicas,
)
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.managed_fields import ABSENT, applied_fields, find, has_path
from avactl.apply.reconcile.diffing.object_diff import Difference, ObjectComparison, compare
from avactl.apply.reconcile.inventory import InventoryRecord, identity_digest
from avactl.base.object_identity import ObjectKey, controller_of
from avactl.change.diff.model import Disruption
from avactl.change.diff.rules import deletion_of, holds_own_data
from avactl.contracts import names
from avactl.program.autoscalers import REPLICAS
from avactl.program.dependencies import dependencies

Body = dict[str, Any]
_INVENTORY_FIELD = ("f:metadata", "f:labels", f"f:{INVENTORY}")


class Action(str, Enum):  # noqa: UP042 - its values stand in JSON
    """The action taken on an object."""

    create = "create"
    change = "change"
    recreate = "replace"
    restore = "restore"
    """Drift: the declaration is unchanged, but the live object differs."""
    prune = "prune"
    keep = "keep"
    """Removed from git but kept: it holds data, or an object that holds data needs it."""
    wait = "wait"
    """No action is possible or needed now; not an error."""
    refuse = "refuse"
    none = "none"


@dataclass(slots=True)
class ReconcileStep:
    """The action for one object, and its result."""

    action: Action
    title: str
    key: ObjectKey
    rank: int
    wanted: Wanted | None = None
    live: Body | None = None
    comparison: ObjectComparison = field(default_factory=ObjectComparison)
    reason: str = ""
    error: str = ""
    """Error message if the action failed."""
    blocked: bool = False
    """True if it failed only because an object that it depends on has failed."""
    lacks_rights: bool = False
    """True if it failed because the account has no right to it: an administrator applies it."""
    after: Body | None = None
    """The object after a write: at least its metadata."""
    first: tuple[Body, ...] = ()
    """Objects that must be deleted before this one can be created."""

    @property
    def differences(self) -> list[Difference]:
        return self.comparison.all()


def plan(
    wanted: Iterable[Wanted],
    live: Mapping[ObjectKey, Body],
    inventory: str,
    record: InventoryRecord,
    hands: Hands,
    *,
    take_over: bool = False,
    scaled: Mapping[ObjectKey, str] = MappingProxyType({}),
) -> list[ReconcileStep]:
    """Return all steps: applies in apply order, then prunes in prune order.

    `scaled`: the scalers of workloads whose `replicas` stay as they are.
    """
    steps = [
        _make_step(each, live.get(each.key), inventory, record, hands, take_over, scaled.get(each.key, ""))
        for each in wanted
    ]
    _hold_back(steps)
    _mark_recreated(steps)
    declared = {step.key for step in steps}
    return [*steps, *_prune_steps(live, declared, inventory)]


def _make_step(
    each: Wanted,
    live: Body | None,
    inventory: str,
    record: InventoryRecord,
    hands: Hands,
    take_over: bool,
    scaler: str,
) -> ReconcileStep:
    step = ReconcileStep(Action.none, str(each), each.key, each.rank, each, live)
    if live is None or live["metadata"].get("deletionTimestamp"):
        if each.manifest.patch:
            step.action, step.reason = Action.wait, "not in the cluster yet; its fields are set once it exists"
        elif identity_digest(each.key) in record.objects:
            step.action, step.reason = Action.restore, "it was deleted in the cluster"
        else:
            step.action = Action.create
        return step
    owner = inventory_of(live)
    # A `run` annotation that no apply has set was written by hand.
    theirs = has_path(applied_fields(live), _INVENTORY_FIELD) or identity_digest(each.key) not in record.objects
    if owner not in ("", inventory) and theirs and not take_over:
        step.action = Action.refuse
        step.error = f"owned by inventory {owner}: remove it there, or take it over with --take-over"
        return step
    ours = owner == inventory or (live["metadata"].get("labels") or {}).get(names.MANAGED_BY) == names.MANAGER
    if each.gvk.kind == "Namespace" and not ours and not take_over:
        step.action = Action.refuse
        step.error = (
            "the namespace exists and is not avactl's: choose another name, or hand it over with "
            f"`kubectl label namespace {each.key.name} {names.MANAGED_BY}={names.MANAGER}`"
        )
        return step
    if each.gvk.kind == "Job" and run_of(live) != run_of(each.body):
        step.comparison = compare(each.body, live, each.leave, hands)
        running = not terminal_condition(live)
        if running and live_annotations(each.body).get(names.ON_CHANGE) == "finish":
            step.action, step.reason = Action.wait, "the current run finishes first (`onChange: finish`)"
        else:
            step.action = Action.recreate
            step.reason = "a new run" + ("; the current one is stopped" if running else "")
        return step
    unchanged = record.unchanged(each)
    if scaler:
        each = step.wanted = without_replicas(each)
        step.reason = f"{REPLICAS} is left to {scaler}, which scales it"
    step.comparison = compare(each.body, live, each.leave, hands)
    freed = _claim_ref_differences(each, live)
    if freed and step.comparison.same:
        step.action, step.reason = Action.change, "its claim was deleted; the volume is released"
    step.comparison.take_out += freed
    if not step.comparison.same and step.action is Action.none:
        step.action = Action.restore if unchanged else Action.change
        if owner == "" and identity_digest(each.key) not in record.objects:
            step.action, step.reason = Action.change, "already existed; taken over"
    return step


def _hold_back(steps: list[ReconcileStep]) -> None:
    """While a spec's current run finishes, keep all objects of the spec unchanged."""
    held = {
        step.wanted.manifest.item.key
        for step in steps
        if step.wanted is not None and step.key.kind == "Job" and step.action is Action.wait
    }
    if not held:
        return
    for step in steps:
        assert step.wanted is not None
        if step.wanted.manifest.item.key in held and step.action in (Action.create, Action.change, Action.recreate):
            step.action, step.reason = Action.wait, "waits for the current run to finish (`onChange: finish`)"


def _mark_recreated(steps: list[ReconcileStep]) -> None:
    """Recreate objects that are deleted together with another one."""
    by_key = {step.key: step for step in steps}
    dying = [step for step in steps if step.live is not None and step.live["metadata"].get("deletionTimestamp")]
    spaces = {step.key.name for step in dying if step.key.kind == "Namespace"}
    for step in steps:
        # A missing object is created in any case.
        if step.key.namespace in spaces and step.action is not Action.refuse and step.live is not None:
            step.action, step.live, step.comparison = Action.restore, None, ObjectComparison()
            step.reason = "its namespace is being deleted"
    for step in dying:
        if step.key.kind == "PersistentVolume" and step.live is not None:
            # A volume is deleted once its claim is. The claim of an external store holds no data itself.
            claim = by_key.get(_claim_of(step.live))
            if claim is not None and claim.live is not None and not holds_own_data(claim.live):
                step.first = (claim.live,)
                claim.action, claim.comparison = Action.recreate, ObjectComparison()
                claim.reason = "its volume was deleted"


def _claim_of(volume: Body) -> ObjectKey:
    claim = volume["spec"].get("claimRef") or {}
    return ObjectKey("", "PersistentVolumeClaim", claim.get("namespace", ""), claim.get("name", ""))


def _claim_ref_differences(each: Wanted, live: Body) -> list[Difference]:
    """Return the `claimRef` fields that keep a volume from being bound again after its claim was deleted."""
    if each.key.kind != "PersistentVolume" or (live.get("status") or {}).get("phase") != "Released":
        return []
    if "uid" in (each.body["spec"].get("claimRef") or {"uid": ""}):
        return []
    paths = (("f:spec", "f:claimRef", step) for step in ("f:uid", "f:resourceVersion"))
    return [Difference(path, old, ABSENT) for path in paths if (old := find(live, path)) is not ABSENT]


def _prune_steps(
    live: Mapping[ObjectKey, Body], declared: Collection[ObjectKey], inventory: str
) -> list[ReconcileStep]:
    """Return the steps for objects that carry our inventory's label and are no longer in git."""
    gone = {
        key: body
        for key, body in live.items()
        if key not in declared and inventory_of(body) == inventory and not controller_of(body["metadata"])
    }
    kept = _kept_objects(gone, live)
    steps = []
    for key, body in gone.items():
        step = ReconcileStep(Action.prune, str(key), key, rank_of(key.kind), live=body)
        if body["metadata"].get("deletionTimestamp"):
            step.action, step.reason = Action.wait, "is being deleted"
        elif key in kept:
            step.action, step.reason = Action.keep, kept[key]
        steps.append(step)
    return sorted(steps, key=lambda step: (-step.rank, step.key))


def holds_data(live: Mapping[str, Any]) -> bool:
    """Return whether deleting a live object would lose data that its spec does not allow to delete."""
    notes = live_annotations(live)
    if notes.get(HOLDS_DATA) == "true":
        return True
    lost = deletion_of(live["kind"], live)[0] is Disruption.DATA_LOSS
    return lost and notes.get(DELETION_POLICY) != "delete" and PATCHED not in notes


def _kept_objects(gone: Mapping[ObjectKey, Body], live: Mapping[ObjectKey, Body]) -> dict[ObjectKey, str]:
    """Return the objects that are not pruned, with the reason: those that hold data, and all that these need."""
    kept: dict[ObjectKey, str] = {key: "it holds data" for key, body in gone.items() if holds_data(body)}
    ahead = list(kept)
    while ahead:
        key = ahead.pop()
        for other in dependencies(live[key]):
            if other in gone and other not in kept:
                kept[other] = f"needed by {key}"
                ahead.append(other)
    return kept


def masked_values(difference: Difference, kind: str) -> tuple[Any, Any]:
    """Return both values of a difference with secrets masked; ABSENT for a missing value."""
    from avactl.change.diff.secrets import mask_credentials
    from avactl.diagnostics.redaction import MASK

    if kind == "Secret" and difference.path[0] in ("f:data", "f:stringData"):
        return tuple(value if value is ABSENT else MASK for value in (difference.old, difference.new))  # type: ignore[return-value]
    name = difference.path[-1][2:]
    old, new = (
        value if value is ABSENT else mask_credentials(value, name) for value in (difference.old, difference.new)
    )
    return old, new
