"""One reconcile run: read the live state, plan actions, and execute them under the lease."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

from avactl.apply.reconcile.actions import Action, plan
from avactl.apply.reconcile.apply import Applier, settle_comparisons, to_do
from avactl.apply.reconcile.claims import Claims, confirm_claim, read_claims, refusal_reason, take_over
from avactl.apply.reconcile.desired import Wanted
from avactl.apply.reconcile.inventory import InventoryRecord, Records, content_digests, kinds_of
from avactl.apply.reconcile.live_state import Observed, observe_cluster
from avactl.apply.reconcile.options import ReconcileOptions
from avactl.apply.reconcile.readiness import wait_gone, wait_healthy
from avactl.apply.reconcile.reporting.events import RunEvents
from avactl.apply.reconcile.reporting.listener import Listener
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.base.object_identity import Gvk
from avactl.contracts import names
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.leader import HeldError, Leader, LostLeaseError
from avactl.kube.object_client import ObjectClient
from avactl.kube.replica import process_identity

_FIRST_WAIT_S = 15.0
"""Seconds for which the first request of a run is retried."""
_DELETED_WAIT = 10.0
"""Seconds to wait for a deletion in a run that does not wait for health."""


class Reconciler:
    """Runs reconciliation on one cluster."""

    def __init__(self, client: Client, options: ReconcileOptions, listener: Listener | None = None) -> None:
        self.api = ObjectClient(client, patience=options.patience)
        self.options = options
        self.events = RunEvents(client)
        self.lease = Leader(client, options.namespace, f"{names.RECONCILER}-{options.inventory}", process_identity())
        self.records = Records(self.api, options.namespace, options.inventory)
        self.record = InventoryRecord()
        self.claims = Claims()
        self.listener = listener or Listener()

    async def run(self, wanted: Collection[Wanted], *, holding: bool = False) -> StepResult:
        """Make the cluster match git. `holding`: the caller has the lease. Raises UnreachableError and ApiError.

        Refusals of single objects are recorded in the result; only errors that affect the whole run are raised.
        """
        options = self.options
        result = StepResult(
            options.cluster, options.inventory, options.commit, context=self.api.client.context, dry_run=options.dry_run
        )
        # A server that never answered is more likely the wrong address than a restart.
        self.api.patience = min(options.patience, _FIRST_WAIT_S)
        await self.api.find_kinds({Gvk("v1", "ConfigMap"), Gvk("v1", "Namespace")})
        self.api.patience = options.patience
        acquires = not holding and not options.dry_run
        before = await self._lease_transitions() if acquires else -1
        result.problem = await self._plan(wanted, result)
        if result.problem or options.dry_run:
            return result
        if to_do(result.steps) or self._record_after(wanted, result) != self.record:
            try:
                async with self._hold_lease(wanted, holding):
                    if acquires and await self._lease_transitions() != max(before + 1, 0):
                        # Another process has written since the live state was read.
                        result.problem = await self._plan(wanted, result)
                        if result.problem:
                            return result
                    result.problem = await self._write(wanted, result)
                    if result.problem:
                        return result
            except HeldError as error:
                result.problem = f"{error}: timed out (--timeout)"
                return result
            except LostLeaseError:
                result.problem = "the lease was lost; another reconciler continues"
                return result
        patience = options.timeout if options.wait else 0.0
        ends = monotonic() + patience
        if options.wait:
            await wait_gone(self.api, result.steps, patience=patience, say=self.listener.waiting)
        left = max(0.0, ends - monotonic())
        # Objects written a moment ago are unchanged or have no status yet.
        judged = result.steps if options.wait else [step for step in result.steps if step.after is None]
        result.health = await wait_healthy(
            self.api, judged, options.inventory, patience=left, say=self.listener.waiting
        )
        if not options.wait:
            result.health = {name: h for name, h in result.health.items() if h.state.value == "failed"}
        return result

    async def tell(self, result: StepResult) -> None:
        """Write the Events of a run; none if nothing changed."""
        if result.changed or result.failed:
            await self.events.report_run(self.records.reference(self.record), result)

    async def refusal(self) -> str:
        """Read the identity of the cluster; return the reason why a run must not write to it, or an empty string."""
        options = self.options
        await self.api.find_kinds({Gvk("v1", "ConfigMap")})
        self.record = await self.records.read()
        self.claims = await read_claims(self.api, self.records, options.cluster)
        return "" if options.take_over else refusal_reason(self.claims, self.record, self.api.client.context, options)

    async def _plan(self, wanted: Collection[Wanted], result: StepResult) -> str:
        """Read the live state and plan; return the reason why the run must stop, or an empty string."""
        options = self.options
        foreign = await self.refusal()
        result.carries = tuple(sorted(self.claims.others))
        if foreign:
            return foreign
        refused = "" if options.accept_owners else options.not_owned(self.record.owners)
        if refused:
            return (
                f"{refused} (`owners` of the last reconciled commit {self.record.commit[:10]}): move the spec, or run "
                "`avactl reconcile --once --accept-owners` if the changed `owners` are right"
            )
        seen: Observed = await observe_cluster(self.api, wanted, self.record)
        result.unseen = sorted(map(str, seen.unseen))
        result.steps = plan(
            wanted,
            seen.live,
            options.inventory,
            self.record,
            options.hands,
            take_over=options.take_over,
            scaled=seen.scaled,
        )
        if not wanted and not options.allow_empty and any(s.action is Action.prune for s in result.steps):
            result.steps = []
            return f"git declares no objects for cluster {options.cluster}; use --allow-empty to prune everything"
        if not options.prune:
            for step in result.steps:
                if step.action is Action.prune:
                    step.action, step.reason = Action.wait, "not pruned (--no-prune)"
        await settle_comparisons(self.api, result.steps)
        self.listener.planned(sum(step.action not in (Action.none, Action.keep, Action.wait) for step in result.steps))
        return ""

    @asynccontextmanager
    async def _hold_lease(self, wanted: Collection[Wanted], holding: bool) -> Any:
        """Hold the lease for the length of the block and allow writes only meanwhile."""
        if holding:
            yield
            return
        await self.prepare(wanted)
        async with self.lease.hold(self.options.timeout, self.listener.lease):
            self.api.allowed = self.lease.leading
            yield

    async def _lease_transitions(self) -> int:
        """Return how often the lease has passed to another process; -1 if it does not exist."""
        lease = await self.api.read(self.lease.path)
        return -1 if lease is None else int((lease.get("spec") or {}).get("leaseTransitions") or 0)

    async def prepare(self, wanted: Collection[Wanted]) -> None:
        """Create the system namespace, which contains the Lease. Raises ApiError, UnreachableError."""
        kind = Gvk("v1", "Namespace")
        await self.api.find_kinds({kind})
        live = await self.api.get(kind, "", self.options.namespace)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            live = await self.api.wait_deleted(live, self.options.timeout)
            if live is not None:
                text = f"namespace {self.options.namespace} is being deleted: run again once it is deleted"
                raise ApiError(409, "Conflict", text)
        if live is None:
            declared = (each for each in wanted if each.gvk == kind and each.key.name == self.options.namespace)
            # With the label, a later commit that declares the namespace may take it over.
            metadata = {"name": self.options.namespace, "labels": {names.MANAGED_BY: names.MANAGER}}
            bare = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            await self.api.apply(next((each.body for each in declared), bare))

    def _record_after(self, wanted: Collection[Wanted], result: StepResult) -> InventoryRecord:
        """Return the record to write after the run."""
        failed = {step.key for step in result.steps if step.error}
        held = {step.key for step in result.steps if step.action is Action.wait and step.wanted is not None}
        objects = content_digests(each for each in wanted if each.key not in failed and each.key not in held)
        left = [(step, Gvk.of(step.live)) for step in result.steps if step.wanted is None and step.live is not None]
        gone = {gvk for step, gvk in left if step.action is Action.prune and not step.error}
        still = {gvk for step, gvk in left if gvk not in gone or step.error}
        return replace(
            self._claim(self.record),
            commit=self.options.commit,
            complete=result.complete,
            owners=self.options.owners,
            kinds=kinds_of(wanted) | still,
            objects=objects,
        )

    def _claim(self, record: InventoryRecord) -> InventoryRecord:
        """Return a record that claims this Kubernetes cluster for the Cluster and the repository of the run."""
        repository = self.options.repository or record.repository
        return replace(record, repository=repository, cluster=self.options.cluster, cluster_uid=self.claims.uid)

    async def _write(self, wanted: Collection[Wanted], result: StepResult) -> str:
        """Claim the cluster and carry out the steps; return the reason why they must not be, or an empty string."""
        options = self.options
        kinds, claim = kinds_of(wanted) | self.record.kinds, self._claim(self.record)
        if kinds != self.record.kinds or claim != self.record:
            # Record a kind before creating its first object, so that the next run finds it if this one is killed.
            before = self.record
            self.record = await self.records.write(replace(claim, kinds=kinds, complete=False))
            if options.take_over:
                await take_over(self.claims, options.cluster)
            if before.cluster != options.cluster:
                problem = await confirm_claim(self.records, self.record, before, options)
                if problem:
                    self.record, result.steps = before, []
                    return problem
                result.claimed = True
        patience = options.timeout if options.wait else min(options.timeout, _DELETED_WAIT)
        applier = Applier(self.api, options.inventory, options.hands, patience=patience, listener=self.listener)
        await applier.run(result.steps)
        following = self._record_after(wanted, result)
        if following != self.record:
            self.record = await self.records.write(following)
        return ""


async def reconcile_once(
    client: Client, options: ReconcileOptions, wanted: Collection[Wanted], listener: Listener | None = None
) -> tuple[StepResult, Reconciler]:
    """Run once. A problem that stops the run is recorded in its result."""
    reconciler = Reconciler(client, options, listener)
    try:
        result = await reconciler.run(wanted)
    except (ApiError, UnreachableError) as error:
        result = StepResult(
            options.cluster, options.inventory, options.commit, problem=str(error), context=client.context
        )
        if isinstance(error, UnreachableError):
            result.unreachable = True
            result.problem = f"the API server is unreachable: {error}"
    return result, reconciler
