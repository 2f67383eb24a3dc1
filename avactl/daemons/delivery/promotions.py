"""One pass over a promotion: observe, decide, act, and tell users."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from time import monotonic
from typing import Protocol

from avactl.base.terminal import shorten_middle
from avactl.contracts.delivery import (
    PROMOTION_KEY,
    STATE_KEY,
    HealthRecord,
    PromotedSpec,
    PromotionPlan,
    PromotionState,
)
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import DELIVERY_DAEMON
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.messages import (
    BRANCHES,
    parse_promotion_branch,
    promotion_message,
    promotion_prefix,
)
from avactl.daemons.delivery.commits.promoted_values import (
    PromotionHistory,
    PromotionValues,
    SpecValues,
    changed_values,
    combined_digest,
    is_proposed,
)
from avactl.daemons.delivery.commits.proposal_branches import find_abandoned
from avactl.daemons.delivery.commits.records import RecordedService
from avactl.daemons.delivery.commits.repository import DeliveryError
from avactl.daemons.delivery.config_maps import ConfigMaps, state_name
from avactl.daemons.delivery.promote import PromotionConfig, PromotionDecision, PromotionSeen, decide_promotion
from avactl.forges.proposals import Proposal
from avactl.kube import logs
from avactl.kube.client import Client
from avactl.kube.events import EventRecorder

MAX_PROPOSAL_INTERVAL_S = 60.0
"""Longest time between two questions to the forge about one pull request."""
_REVIEW_INTERVAL_S = 300.0
"""Time between two searches for pull requests of specs that are gone, while no plan goes."""
_FOREIGN = "its branch had another change than that of the promotion"
_MAX_SHOWN = 500
"""Characters of the values of a service that are shown."""


class PromotionProposals(Protocol):
    """Pull requests of a forge. Calls block."""

    def find(self, branch: str) -> Proposal | None:
        """Return the newest one of a branch; None if there is none."""

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """Open one, and return its URL."""

    def withdraw(self, branch: str, reason: str) -> None:
        """Close the open one of a branch, and say why."""


class Promotions:
    """Advances promotions, by the names of their plans in the store."""

    def __init__(
        self,
        client: Client,
        maps: ConfigMaps,
        branch: SpecBranch,
        proposals: PromotionProposals | None,
        interval: float,
    ) -> None:
        """`interval`: seconds between two checks of a promotion."""
        self._client, self._maps, self._branch, self._proposals = client, maps, branch, proposals
        self._history = PromotionHistory(branch.repository)
        self._events = EventRecorder(client, DELIVERY_DAEMON, "Promotion")
        self._interval = interval
        self._looked: dict[str, float] = {}
        self._asked: dict[str, tuple[Proposal | None, float]] = {}
        """Pull request of each branch, and when the forge told it."""
        self._own: dict[str, str] = {}
        """Tip of each branch that was found to have the change of its promotion."""
        self._branches: dict[str, str] = {}
        self._listed = float("-inf")
        self._names: set[str] = set()
        """Plans of the last turn."""
        self._reviewed = float("-inf")

    def is_review_due(self, names: Collection[str]) -> bool:
        """Return True if pull requests without a plan may be open.

        `names`: the plans that exist, of promotions, pipelines and roll-backs.
        """
        gone, self._names = self._names - set(names), set(names)
        if gone:
            self._reviewed = float("-inf")
        return self._proposals is not None and monotonic() - self._reviewed >= _REVIEW_INTERVAL_S

    async def close_abandoned(self) -> None:
        """Close the pull requests of promotions, pipelines and roll-backs that the specs do not ask for any more.

        Their branches are deleted. The plan is gone with the spec, so the branches themselves say whose they are.
        Raises HintedError.
        """
        await self._branch.fetch()
        self._listed = float("-inf")
        repository, reason = self._branch.repository, "the service is not promoted by pull request any more"
        for branch, tip in (await self._list_branches()).items():
            found = parse_promotion_branch(branch)
            if found is not None and not await self._branch.run(is_proposed, repository, branch, *found):
                await self._close(branch, tip, "/".join(found), reason)
            elif found is None and (gone := await self._branch.run(find_abandoned, repository, branch, tip)):
                await self._close(branch, tip, gone.spec, gone.reason)
        self._reviewed = monotonic()

    async def advance(self, name: str) -> None:
        """Advance one promotion as far as possible now.

        Raises ApiError, UnreachableError, DocumentError and HintedError; nothing is lost, and a later pass goes on.
        """
        data = self._maps.data(name)
        if data is None or monotonic() - self._looked.get(name, float("-inf")) < self._interval:
            return
        self._looked[name] = monotonic()
        plan = load(PromotionPlan, data.get(PROMOTION_KEY, ""))
        config = PromotionConfig(plan.window, plan.by, plan.rollout)
        seen, proposal = await self._observe(plan, config)
        decided = decide_promotion(config, seen)
        branch = proposal_branch(plan, seen.values)
        foreign = await self._withdraw(plan, seen, branch, decided)
        url = proposal.url if proposal is not None and decided.keep and not foreign else ""
        if foreign:
            decided = decided._replace(message=_FOREIGN)
            await self._tell(plan, f"{branch} deleted: {_FOREIGN}")
        if decided.step == "commit":
            await self._commit(plan, seen)
        elif decided.step == "propose":
            url = await self._propose(plan, seen, branch)
        await self._write_state(name, plan, seen, decided, url)

    async def _observe(self, plan: PromotionPlan, config: PromotionConfig) -> tuple[PromotionSeen, Proposal | None]:
        values = await self._branch.run(self._history.read, plan)
        source = await self._branch.health(_recorded(plan.source))
        target = await self._branch.health(_recorded(plan.target)) if plan.rollout else None
        seen = PromotionSeen(values, source, target)
        if decide_promotion(config, seen).step != "propose":
            return seen, None
        branch = proposal_branch(plan, values)
        proposal = await self._find_proposal(branch)
        if proposal is not None and proposal.state == "merged":
            await self._branch.fetch()
            values = await self._branch.run(self._history.read, plan)
            if proposal_branch(plan, values) != branch:
                return seen._replace(values=values), None
        return seen._replace(proposal="" if proposal is None else proposal.state), proposal

    async def _find_proposal(self, branch: str) -> Proposal | None:
        if self._proposals is None:
            raise DeliveryError("the forge of the repository is unknown", "set `forge` in `delivery` of the Cluster")
        known, asked = self._asked.get(branch, (None, float("-inf")))
        if known is not None and monotonic() - asked < min(2 * self._interval, MAX_PROPOSAL_INTERVAL_S):
            return known
        found = await asyncio.to_thread(self._proposals.find, branch)
        self._asked[branch] = found, monotonic()
        return found

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _withdraw(
        self, plan: PromotionPlan, seen: PromotionSeen, current: str, decided: PromotionDecision
    ) -> bool:
        """Close the pull requests of a promotion whose change is not proven any more, and delete their branches.

        Return True if that of the current change is one of them because others have pushed to its branch.
        """
        foreign = False
        if plan.by == "commit" or self._proposals is None:
            return foreign
        prefix = promotion_prefix(plan.team, plan.target.document)
        for branch, tip in (await self._list_branches()).items():
            # Names of services may begin alike.
            if not _is_digest(branch.removeprefix(prefix)):
                continue
            reason = "the source or the target has another version now"
            if branch == current and decided.keep:
                if await self._is_own(plan, seen, branch, tip):
                    continue
                foreign, reason = True, _FOREIGN
            elif branch == current:
                reason = decided.message or "the source has to be healthy anew"
            await self._close(branch, tip, f"{plan.team}/{plan.target.document}", reason)
        return foreign

    async def _close(self, branch: str, tip: str, service: str, reason: str) -> None:
        """Close the pull request of a branch, and delete the branch."""
        assert self._proposals is not None
        await asyncio.to_thread(self._proposals.withdraw, branch, reason)
        self._asked.pop(branch, None)
        self._own.pop(branch, None)
        self._listed = float("-inf")
        await self._branch.run(self._branch.repository.delete_branch, branch, tip)
        logs.info("branch deleted", service=service, branch=branch, why=reason)

    async def _is_own(self, plan: PromotionPlan, seen: PromotionSeen, branch: str, tip: str) -> bool:
        """Return True if a branch has the change of a promotion, and nothing else: others may push to it."""
        if self._own.get(branch) != tip:
            edited = partial(self._history.edit, plan, seen.values, "")
            if not await self._branch.run(self._branch.repository.has_change, branch, tip, plan.target.file, edited):
                return False
            self._own[branch] = tip
        return True

    async def _list_branches(self) -> dict[str, str]:
        """Return the branches of all promotions' pull requests, with their tips."""
        if monotonic() - self._listed >= self._interval:
            self._branches = await self._branch.run(self._branch.repository.branches, BRANCHES)
            self._listed = monotonic()
        return self._branches

    async def _commit(self, plan: PromotionPlan, seen: PromotionSeen) -> None:
        message, repository = _message(plan, seen), self._branch.repository
        edited = partial(self._history.edit, plan, seen.values, message)
        changed, head = await self._branch.run(lambda: (repository.change(plan.target.file, edited), repository.head))
        if changed:
            metrics.PROMOTIONS.inc()
            await self._tell(plan, f"commit {head[:10]} on {self._branch.name}")

    async def _propose(self, plan: PromotionPlan, seen: PromotionSeen, branch: str) -> str:
        assert self._proposals is not None
        message, repository = _message(plan, seen), self._branch.repository
        edited = partial(self._history.edit, plan, seen.values, message)
        self._listed = float("-inf")
        if not await self._branch.run(repository.change_on, branch, plan.target.file, edited):
            return ""  # the branch of the specs has changed: the next pass decides anew
        # Asked after the push: a replica that was killed may have opened it.
        found = await asyncio.to_thread(self._proposals.find, branch)
        if found is not None and found.state == "open":
            return found.url
        title, _, text = message.partition("\n\n")
        url = await asyncio.to_thread(self._proposals.open, branch, self._branch.name, title, text)
        self._asked.pop(branch, None)
        metrics.PROMOTIONS.inc()
        await self._tell(plan, f"proposed by {url}")
        return url

    async def _tell(self, plan: PromotionPlan, note: str) -> None:
        target = plan.target
        logs.info("promotion", service=f"{target.namespace}/{target.service}", note=note)
        if plan.rollout:  # the role of the service's roll-backs allows events
            regarding = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "namespace": target.namespace,
                "name": target.service,
            }
            await self._events.record(regarding, "Promotion", note)

    async def _write_state(
        self, name: str, plan: PromotionPlan, seen: PromotionSeen, decided: PromotionDecision, url: str
    ) -> None:
        held = self._maps.data(state_name(name))
        if held is None:
            raise DeliveryError(f"ConfigMap {state_name(name)} does not exist", "are the specs applied?")
        known = read_promotion_state(held.get(STATE_KEY))
        new = PromotionState(
            phase=decided.phase,
            message=decided.message[:_MAX_SHOWN],
            source=_describe(plan, seen.values.source),
            target=_describe(plan, seen.values.target),
            url=url[:_MAX_SHOWN],
            since=decided.since or (known.since if known.phase == decided.phase else self._client.clock.now()),
        )
        if new != known:
            await self._maps.write_promotion(name, new)


def read_promotion_state(text: object) -> PromotionState:
    """Parse a state; a text that the daemon has not written is as good as none: no decision depends on it."""
    try:
        return load(PromotionState, text)
    except DocumentError:
        return PromotionState()


def proposal_branch(plan: PromotionPlan, values: PromotionValues) -> str:
    """Return the branch of the pull request with exactly one change: from these values of the target to these."""
    both = {"source": values.source.digest, "target": values.target.digest}
    return f"{promotion_prefix(plan.team, plan.target.document)}{combined_digest(both)}"


def _is_digest(text: str) -> bool:
    return len(text) == 16 and all(each in "0123456789abcdef" for each in text)


def _recorded(spec: PromotedSpec) -> RecordedService:
    return RecordedService(spec.cluster, spec.namespace, spec.service)


def _message(plan: PromotionPlan, seen: PromotionSeen) -> str:
    assert isinstance(seen.source, HealthRecord)
    return promotion_message(plan, seen.source, _version(plan, seen.values.source), changed_values(plan, seen.values))


def _version(plan: PromotionPlan, values: SpecValues) -> str:
    """Return what people call these values: the version of the only model, else the first text of a URL or image."""
    known = dict(zip(plan.fields, values.values, strict=True))
    versions = [each for path, each in known.items() if path.endswith(".version") and isinstance(each, str)]
    if len(versions) == 1:
        return f"version {versions[0][:60]}"
    return f"version {values.digest[:8]}"


def _describe(plan: PromotionPlan, values: SpecValues) -> str:
    return shorten_middle(_version(plan, values), _MAX_SHOWN)
