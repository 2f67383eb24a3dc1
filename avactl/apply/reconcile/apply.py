"""Execute the planned actions in apply order; a failed object stops only the objects that depend on it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from itertools import groupby
from time import monotonic

from avactl.apply.reconcile.actions import Action, ReconcileStep, holds_data
from avactl.apply.reconcile.desired import PATCHED, inventory_of, live_annotations
from avactl.apply.reconcile.diffing import managed_fields
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.managed_fields import ABSENT
from avactl.apply.reconcile.diffing.object_diff import Difference, compare, rival_entries
from avactl.apply.reconcile.health import DELETING, Health, HealthState, object_health
from avactl.apply.reconcile.pruning import held_back
from avactl.apply.reconcile.reporting.listener import Listener, report_waits
from avactl.base.object_identity import Gvk, ObjectKey, defined_kinds
from avactl.change.diff.fields import ListStep, ValueChange
from avactl.change.diff.model import ABSENT as NOTHING
from avactl.change.diff.model import Disruption
from avactl.change.diff.rules import classify_change, is_refused
from avactl.compiler.normalise import RANK
from avactl.contracts.names import RECONCILER
from avactl.kube.client import ApiError, UnreachableError
from avactl.kube.object_client import Body, ObjectClient

APPLIED = frozenset({Action.create, Action.change, Action.recreate, Action.restore})
_MAX_TRIES = 5
_POLL_INTERVAL_S = 0.1
_SECOND_DELETE_TIMEOUT_S = 10.0
"""Seconds to wait for the deletion of an object after the wait for another one has timed out."""
_ESTABLISHED_TIMEOUT_S = 30.0
"""Seconds to wait until a new kind is served."""

_LACKS_RIGHTS = re.compile(
    rf"cannot [a-z]+ resource|attempting to grant RBAC permissions|ValidatingAdmissionPolicy '{RECONCILER}'"
).search
"""Matches refusals that depend on the account: by RBAC, and by the policy on the account of the built-in reconciler."""


def to_do(steps: Iterable[ReconcileStep]) -> bool:
    """Return whether any step writes to the cluster."""
    return any(step.action in APPLIED or step.action is Action.prune for step in steps)


async def settle_comparisons(api: ObjectClient, steps: Iterable[ReconcileStep]) -> None:
    """Resolve comparisons that need a dry run on the API server. Writes nothing."""

    async def resolve(step: ReconcileStep) -> None:
        assert step.wanted is not None
        assert step.live is not None
        try:
            answer = await api.apply(step.wanted.body, dry_run=True)
        except ApiError:
            return  # the apply reports the same error
        if _object_content(answer) != _object_content(step.live):
            return
        if step.comparison.unsure:
            step.action = Action.none
            step.comparison.apply.clear()
        elif all(each.old != each.new for each in step.comparison.apply):
            # Otherwise an apply is of use: it makes us the owner of equal values.
            step.action, step.reason = Action.none, "rewritten by admission"

    async def without_defaults(step: ReconcileStep) -> None:
        """Leave fields that come back with the same value when they are removed: defaults of the API server.

        A client that creates an object owns them like those that it has sent.
        """
        assert step.live is not None
        try:
            # No entry of a list is a default, and an object can be invalid without one that it needs.
            fields = [each for each in step.comparison.take_out if not each.path[-1].startswith("k:")]
            answer = await api.preview_removal(step.live, _removal_pointers(step.live, fields))
        except ApiError:
            return
        if answer is None:
            return
        step.comparison.take_out = [
            each
            for each in step.comparison.take_out
            if each not in fields or managed_fields.find(answer, each.path) != managed_fields.find(step.live, each.path)
        ]
        if step.comparison.same:
            step.action = Action.none

    alike = (Action.change, Action.restore)
    added = [step for step in steps if step.action in alike and step.live is not None and step.comparison.take_out]
    await asyncio.gather(*map(without_defaults, added))
    unsure = [
        step
        for step in steps
        if step.live is not None
        and (step.action is Action.restore or (step.action is Action.change and step.comparison.unsure))
    ]
    only_apply = (each for each in unsure if not each.comparison.take_out and not each.comparison.hand_over)
    await asyncio.gather(*(resolve(each) for each in only_apply if each.comparison.apply))


def _object_content(live: Body) -> Body:
    bare = ("managedFields", "resourceVersion", "generation")
    return {**live, "metadata": {key: value for key, value in live["metadata"].items() if key not in bare}}


class Applier:
    """Executes the steps of one run."""

    def __init__(
        self,
        api: ObjectClient,
        inventory: str,
        hands: Hands,
        *,
        patience: float = 300.0,
        listener: Listener | None = None,
    ) -> None:
        """`patience`: seconds to wait for an object to be deleted; `listener` is told of steps and waits."""
        self._api, self._inventory, self._hands = api, inventory, hands
        self._patience, self._listener = patience, listener or Listener()
        self._late: dict[str, Health] = {}
        """Objects whose deletion is waited for, by title."""
        self._failed: dict[ObjectKey, str] = {}
        self._pending: dict[ObjectKey, asyncio.Event] = {}
        """Objects being applied; each event is set when its step has ended, successfully or not."""

    async def run(self, steps: list[ReconcileStep]) -> None:
        """Execute all steps and record the result in each. Raises LostLeaseError."""
        async with report_waits(self._late, self._listener.waiting):
            await self._run(steps)

    async def _run(self, steps: list[ReconcileStep]) -> None:
        for step in steps:
            if step.error:
                self._failed[step.key] = step.title
        forward = sorted((step for step in steps if step.action in APPLIED), key=lambda step: step.rank)
        for _, group in groupby(forward, key=_wave_number):
            several = list(group)
            self._pending = {step.key: asyncio.Event() for step in several}
            await asyncio.gather(*map(self._in_turn, several))
            kinds = (step for step in several if step.key.kind == "CustomResourceDefinition" and not step.error)
            await asyncio.gather(*map(self._wait_served, kinds))
        held = held_back(steps)
        for step in steps:
            if step.action is Action.prune and step.key in held:
                step.action, step.reason = Action.wait, f"not pruned: {held[step.key]}"
        prunes = [step for step in steps if step.action is Action.prune]
        for _, group in groupby(prunes, key=lambda step: step.rank):
            await asyncio.gather(*map(self._delete_pruned, list(group)))

    async def _in_turn(self, step: ReconcileStep) -> None:
        """Apply after the steps that this one depends on."""
        assert step.wanted is not None
        for key in step.wanted.dependencies:
            if key in self._pending:
                await self._pending[key].wait()
        try:
            await self._apply(step)
        finally:
            self._pending[step.key].set()

    async def _apply(self, step: ReconcileStep) -> None:
        assert step.wanted is not None
        blocked = next((self._failed[key] for key in step.wanted.dependencies if key in self._failed), None)
        try:
            if blocked is not None:
                step.error, step.blocked = f"depends on {blocked}, which could not be applied", True
            elif await self._api.find_kinds({step.wanted.gvk}):
                step.error = f"the API server does not serve {step.wanted.gvk}"
            else:
                await self._put(step)
        except (ApiError, UnreachableError, _StillThereError) as error:
            _record_error(step, error)
        if step.error:
            self._failed[step.key] = step.title
        self._listener.done(step)

    async def _put(self, step: ReconcileStep) -> None:
        assert step.wanted is not None
        if step.action is Action.recreate:
            await self._recreate(step)
            return
        for body in step.first:
            await self._api.delete(body, "Background")
        live = step.live
        if live is not None and (step.comparison.same or live["metadata"].get("deletionTimestamp")):
            await self._wait_deleted(live)
            live = None
        if live is None:
            step.after = await self._api.apply(step.wanted.body)
            return
        if step.comparison.take_out or step.comparison.hand_over:
            await self._claim_fields(step, live, step.comparison.take_out)
        try:
            step.after = await self._apply_over_rivals(step)
        except ApiError as error:
            if error.status != 422:
                raise
            self._want_replaceable(step, error)
            step.action = Action.recreate
            step.reason = "the change is to immutable fields"
            await self._recreate(step)

    async def _apply_over_rivals(self, step: ReconcileStep) -> Body:
        """Apply; if that is invalid beside entries that other managers have added to the same lists, remove these."""
        assert step.wanted is not None
        try:
            return await self._api.apply(step.wanted.body)
        except ApiError as error:
            live = await self._api.get(step.wanted.gvk, step.key.namespace, step.key.name)
            rivals = rival_entries(step.wanted.body, live, step.comparison.apply) if live is not None else []
            if error.status != 422 or live is None or not rivals:
                raise
            await self._claim_fields(step, live, rivals)
            answer = await self._api.apply(step.wanted.body)
            step.comparison.take_out += rivals
            return answer

    async def _claim_fields(self, step: ReconcileStep, live: Body, differences: list[Difference]) -> None:
        """Make us the owner of fields that the next apply removes, of the object as it is at that moment."""
        assert step.wanted is not None
        released = step.comparison.hand_over
        for _ in range(_MAX_TRIES):
            claimed = [d.path for d in differences if managed_fields.find(live, d.path) is not ABSENT]
            if await self._api.set_owners(live, managed_fields.own_fields(live, claimed, released)):
                return
            found = await self._api.get(step.wanted.gvk, step.key.namespace, step.key.name)
            if found is None:
                return
            live = found
            again = compare(step.wanted.body, live, step.wanted.leave, self._hands)
            released = again.hand_over
            there = {other.path for other in (*again.take_out, *rival_entries(step.wanted.body, live, again.apply))}
            differences = [d for d in differences if d.path in there]

    def _want_replaceable(self, step: ReconcileStep, error: ApiError) -> None:
        """Re-raise the refusal unless the object can be replaced without losing data."""
        assert step.live is not None
        kind = step.key.kind
        classes = {classify_change(kind, _as_change(d), step.live)[0] for d in step.differences}
        if not classes & {Disruption.REPLACE, Disruption.DATA_LOSS}:
            raise error
        if is_refused(max(classes), holds_data(step.live)):
            raise ApiError(
                422,
                "Invalid",
                f"immutable fields changed: {', '.join(sorted({d.field for d in step.differences}))}; replacing "
                "the object would lose data: revert the change, or delete the object by hand "
                f"({_error_message(error)})",
            )

    async def _recreate(self, step: ReconcileStep) -> None:
        """Delete and recreate; the pods of a Job terminate first, so that two runs never write the same checkpoint."""
        assert step.wanted is not None
        assert step.live is not None
        live: Body | None = step.live
        for _ in range(_MAX_TRIES):
            if live is None or await self._api.delete(live, "Foreground" if step.key.kind == "Job" else "Background"):
                break
            live = await self._api.get(step.wanted.gvk, step.key.namespace, step.key.name)
        else:
            raise _StillThereError("the object keeps changing while it is being deleted; the next run retries")
        await self._wait_deleted(step.live)
        step.after = await self._api.apply(step.wanted.body)

    async def _wait_deleted(self, live: Body) -> None:
        """Wait until this object is deleted."""
        title = str(ObjectKey.of(live))
        self._late[title] = DELETING
        try:
            found = await self._api.wait_deleted(live, self._patience)
        finally:
            del self._late[title]
        if found is not None:
            # One time limit for the whole run, not one per wave.
            self._patience = min(self._patience, _SECOND_DELETE_TIMEOUT_S)
            held = ", ".join(found["metadata"].get("finalizers") or ())
            why = f", finalizers: {held}" if held else ""
            raise _StillThereError(f"is still being deleted{why}; the next run retries")

    async def _wait_served(self, step: ReconcileStep) -> None:
        """Wait until a new kind is established, and discovery lists it: that is a moment later."""
        ends = monotonic() + _ESTABLISHED_TIMEOUT_S
        while not step.error:
            live = await self._api.get(Gvk("apiextensions.k8s.io/v1", "CustomResourceDefinition"), "", step.key.name)
            health = object_health(live) if live is not None else Health(HealthState.failed, "it was deleted")
            if live is not None and health.state is HealthState.ready:
                if not await self._api.find_kinds(defined_kinds(live)):
                    return
                health = Health(HealthState.progressing, "discovery does not list it")
            if monotonic() > ends:
                step.error = f"the kind is not served yet: {health.reason}"
                self._failed[step.key] = step.title
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _delete_pruned(self, step: ReconcileStep) -> None:
        live = step.live
        try:
            for _ in range(_MAX_TRIES):
                if live is None:
                    break
                if inventory_of(live) != self._inventory or holds_data(live):
                    step.action, step.reason = Action.keep, "its ownership labels changed during the run"
                    break
                if PATCHED in live_annotations(live):
                    metadata = {"name": step.key.name, "uid": live["metadata"]["uid"]}
                    await self._api.apply({**_gvk(live), "metadata": metadata})
                    step.reason = "the object stays; avactl's fields were removed"
                    break
                if await self._api.delete(live, "Background"):
                    break
                live = await self._api.get(Gvk.of(live), step.key.namespace, step.key.name)
            else:
                step.error = "the object keeps changing while it is being deleted; the next run retries"
        except (ApiError, UnreachableError) as error:
            _record_error(step, error)
        self._listener.done(step)


def _removal_pointers(live: Body, differences: Iterable[Difference]) -> list[str]:
    """Return the JSON pointers of fields: the last list entries first, so that the indices of the others stay valid."""
    ordered = sorted(differences, key=lambda each: managed_fields.list_positions(live, each.path), reverse=True)
    return [managed_fields.json_pointer(live, each.path) for each in ordered]


class _StillThereError(Exception):
    """An object is still being deleted when the wait times out."""


def _wave_number(step: ReconcileStep) -> int:
    """Return the number of the wave of a step; a wave starts when the previous one is complete.

    0: namespaces and definitions; 1: objects that pods read when they start; 2: workloads; 3: custom resources. Within
    a wave, independent objects are applied concurrently, in the order of the table.
    """
    if step.rank <= RANK["CustomResourceDefinition"]:
        return 0
    return 1 if step.rank < RANK["DaemonSet"] else 2 if step.rank < len(RANK) else 3


def _record_error(step: ReconcileStep, error: Exception) -> None:
    """Record the error of a step."""
    step.error = _error_message(error)
    step.lacks_rights = isinstance(error, ApiError) and error.status == 403 and bool(_LACKS_RIGHTS(str(error)))


def _error_message(error: Exception) -> str:
    """Return an error's message; the API server's without the object's name, which the report already shows."""
    if isinstance(error, ApiError):
        return f"{error.message or error} ({error.status})"
    return f"request failed: {error}" if isinstance(error, UnreachableError) else str(error)


def _gvk(live: Body) -> Body:
    return {"apiVersion": live["apiVersion"], "kind": live["kind"]}


def _as_change(difference: Difference) -> ValueChange:
    """Convert a difference to a change as the diff's rules take it."""
    path = tuple(step[2:] if step.startswith("f:") else ListStep(step[2:]) for step in difference.path)
    old, new = (NOTHING if value is ABSENT else value for value in (difference.old, difference.new))
    op = "added" if old is NOTHING else "removed" if new is NOTHING else "changed"
    return ValueChange(path, op, old, new)  # type: ignore[arg-type]
