"""Roll-backs of services in git: commits that revert specs whose version the serving daemon has rolled back.

Every decision follows from the objects and git alone, so a restarted daemon decides the same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from avactl.base.object_identity import namespaced_name, object_reference
from avactl.contracts.delivery import PLAN_KEY, SERVICE_KEY, STATE_KEY, RollbackPlan
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import DELIVERY_DAEMON, PIPELINE_CONFIG, ROLLOUT, ROLLOUT_STATE, TEMPLATE_DIGEST
from avactl.contracts.serving import RolloutState
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.messages import rollback_branch
from avactl.daemons.delivery.commits.repository import DeliveryError
from avactl.daemons.delivery.commits.rollback import NoTextError, RollbackFinding, rolled_back
from avactl.daemons.delivery.config_maps import ConfigMaps, state_name
from avactl.daemons.delivery.plans import read_plan, read_state
from avactl.daemons.delivery.promotions import PromotionProposals
from avactl.daemons.delivery.reports import Reports
from avactl.daemons.delivery.rollouts import deployment_of, replica_sets
from avactl.daemons.serving.revisions import find, revisions_of, template_of
from avactl.kube import logs
from avactl.kube.client import Client
from avactl.kube.events import EventRecorder

_DIGEST_LENGTH = 64
_DEPLOYING_PHASES = ("deploying", "rolling", "reverting")
Body = dict[str, Any]


class Rollbacks:
    """Reverts specs of services, by the names of their plans in the store."""

    def __init__(
        self,
        client: Client,
        maps: ConfigMaps,
        branch: SpecBranch,
        proposals: PromotionProposals | None,
        interval: float,
    ) -> None:
        """`interval`: seconds between two checks of a service."""
        self._client, self._maps, self._branch, self._proposals = client, maps, branch, proposals
        self._events = EventRecorder(client, DELIVERY_DAEMON, "Rollback")
        self._reports = Reports(client, maps, branch)
        self._interval = interval
        self._looked: dict[str, float] = {}
        self._done: dict[str, tuple[str, RollbackFinding]] = {}
        """Commit and finding for which there is nothing more to do, by plan."""
        self._told: dict[tuple[str, str], str] = {}

    async def advance(self, name: str) -> None:
        """Check one service: record its rollouts for other clusters, and revert its spec if it was rolled back.

        Raises ApiError, UnreachableError, DocumentError and DeliveryError; a later pass tries again.
        """
        plan = self._maps.data(name)
        if plan is None or monotonic() - self._looked.get(name, float("-inf")) < self._interval:
            return
        self._looked[name] = monotonic()
        service = load(RollbackPlan, plan.get(SERVICE_KEY, ""))
        deployment = await deployment_of(self._client, service.namespace, service.name)
        if deployment is None:
            return
        unrecorded = None
        try:
            await self._reports.record(service, deployment)
        except DeliveryError as error:  # a roll-back does not wait for it
            unrecorded = error
            await self._tell_problem(name, deployment, "RolloutNotRecorded", error)
        if invalid := self._reports.invalid_plans(service.namespace):
            await self._tell_problem(name, deployment, "ReportIgnored", DeliveryError(invalid, "apply the specs again"))
        if _is_rolled_back(deployment) and not self._has_pipeline(service):
            await self._roll_back(name, service, deployment)
        if unrecorded is not None:
            raise unrecorded

    async def _roll_back(self, name: str, service: RollbackPlan, deployment: Body) -> None:
        try:
            found = find_rollback(deployment, await replica_sets(self._client, deployment))
            if found is None or self._done.get(name) == (self._branch.head, found):
                return
            try:
                seen = await self._set_back(service, deployment, found)
            except NoTextError as error:
                await self._tell_problem(name, deployment, "SpecNotRolledBack", error)
                seen = error.head
            self._done[name] = (seen, found)
        except DeliveryError as error:
            await self._tell_problem(name, deployment, "SpecNotRolledBack", error)
            raise

    async def _tell_problem(self, name: str, deployment: Body, reason: str, error: DeliveryError) -> None:
        problem = f"{error}: {error.hint}" if error.hint else str(error)
        if self._told.get((name, reason)) != problem:
            self._told[name, reason] = problem
            await self._emit_event(deployment, reason, problem, warning=True)

    async def _set_back(self, service: RollbackPlan, deployment: Body, found: RollbackFinding) -> str:
        """Commit or propose the text of the running version; return the head that needs no further change."""
        repository, name = self._branch.repository, self._branch.name
        edited = partial(rolled_back, service=service, found=found)
        if service.by == "commit":
            changed, head = await self._branch.run(lambda: (repository.change(service.file, edited), repository.head))
            if changed:
                metrics.ROLLBACKS.inc()
                await self._emit_event(deployment, "SpecRolledBack", f"commit {head[:10]} on {name}")
            return head
        proposed, head = await self._branch.run(lambda: (edited(repository), repository.head))
        if proposed is None:
            return head
        if self._proposals is None:
            raise DeliveryError("the forge of the repository is unknown", "set `forge` in `delivery` of the Cluster")
        branch = rollback_branch(service, found.rejected)
        known = await asyncio.to_thread(self._proposals.find, branch)
        if known is not None and known.state == "closed":
            return head  # people have declined it
        if known is not None and known.state != "open":
            # The specs have had another version since then: the branch begins anew, from the head.
            await self._branch.run(self._delete_branch, branch)
        if not await self._branch.run(repository.change_on, branch, service.file, edited):
            return head  # the branch of the specs has changed: the next pass decides anew
        # Asked after the push: a replica that was killed may have opened it.
        known = await asyncio.to_thread(self._proposals.find, branch)
        if known is None or known.state != "open":
            title, _, text = proposed.message.partition("\n\n")
            url = await asyncio.to_thread(self._proposals.open, branch, name, title, text)
            metrics.ROLLBACKS.inc()
            await self._emit_event(deployment, "SpecRolledBack", f"proposed by {url}")
        return head

    def _delete_branch(self, branch: str) -> None:
        """Delete the branch of a pull request that has ended, unless others have pushed to it."""
        repository = self._branch.repository
        tip = repository.branches(branch).get(branch)
        if tip is not None and repository.only_file(branch) is not None:
            repository.delete_branch(branch, tip)

    def _has_pipeline(self, service: RollbackPlan) -> bool:
        """Return True if a run of a pipeline is deploying to the service: then the pipeline commits the roll-back."""
        for name in self._maps.of(PIPELINE_CONFIG):
            try:
                target = read_plan((self._maps.data(name) or {}).get(PLAN_KEY, "")).target
                phase = read_state((self._maps.data(state_name(name)) or {}).get(STATE_KEY)).phase
            except DocumentError:
                continue
            if target is None or target.cluster:
                continue
            same = (target.namespace, target.service) == (service.namespace, service.name)
            if same and phase in _DEPLOYING_PHASES:
                return True
        return False

    async def _emit_event(self, deployment: Body, reason: str, note: str, *, warning: bool = False) -> None:
        logs.info("rollback", service=namespaced_name(deployment), reason=reason, note=note)
        regarding = object_reference("apps/v1", "Deployment", deployment["metadata"])
        await self._events.record(regarding, reason, note, warning=warning)


def find_rollback(deployment: Body, sets: Iterable[Body]) -> RollbackFinding | None:
    """Return the versions of a roll-back; None unless the declared version was rejected and another one runs.

    Raises DeliveryError if a version has no digest of its template.
    """
    state = RolloutState.read((deployment["metadata"].get("annotations") or {}).get(ROLLOUT_STATE))
    revisions = revisions_of(deployment, sets)
    wanted, running = find(revisions, template_of(deployment)), revisions.get(state.stable)
    if wanted is None or running is None or wanted is running or not wanted.rejected:
        return None
    rejected, stays = _template_digest(deployment), _template_digest(running.body)
    if not rejected or not stays or rejected == stays:
        raise DeliveryError(
            f"version {running.hash} of {deployment['metadata']['name']} has no digest of its compiled pod template",
            "it was compiled by an earlier release of avactl: revert the change by a commit",
        )
    return RollbackFinding(rejected, stays, state.message)


def _is_rolled_back(deployment: Body) -> bool:
    notes = deployment["metadata"].get("annotations") or {}
    state = RolloutState.read(notes.get(ROLLOUT_STATE))
    return ROLLOUT in notes and state.phase == "steady" and state.reason == "RolledBack"


def _template_digest(body: Mapping[str, Any]) -> str:
    text = (body["metadata"].get("annotations") or {}).get(TEMPLATE_DIGEST, "")
    return text if isinstance(text, str) and len(text) <= _DIGEST_LENGTH else ""
