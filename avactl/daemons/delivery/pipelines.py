"""One pass over a pipeline: observe, decide, act, and write its state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Literal, Protocol

from avactl.base.cron import last_due
from avactl.contracts.delivery import PLAN_KEY, STATE_KEY, PipelineState
from avactl.contracts.names import DELIVERY_DAEMON
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.messages import commit_message, proposal_branch, revert_message
from avactl.daemons.delivery.commits.repository import DeliveryError, ModelOfService
from avactl.daemons.delivery.config_maps import ConfigMaps, state_name
from avactl.daemons.delivery.decide import (
    WORKING,
    Action,
    DeployAction,
    RemoveAction,
    Revert,
    Seen,
    Start,
    candidate_url,
    decide,
)
from avactl.daemons.delivery.jobs import Jobs
from avactl.daemons.delivery.plans import DeliveredPipeline, read_plan, read_state
from avactl.daemons.delivery.rollouts import rollout_of
from avactl.kube import logs
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.events import EventRecorder
from avactl.kube.timestamps import MAX_CLOCK_SKEW_S, unix_time

_MAX_TURNS = 12
"""Decisions of one pass over a pipeline."""
MAX_PROPOSAL_INTERVAL_S = 60.0
"""Longest time between two questions to the forge about one pull request."""
GOOD = ("Deployed", "HandedOver", "Published", "Proposed", "Unchanged", "Running")


class PipelineProposals(Protocol):
    """Pull requests of a forge. Calls block."""

    def state(self, branch: str) -> str:
        """Return `open`, `closed` (without a merge) or `merged` for the newest of a branch; "" if there is none."""

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """Open one, and return its URL."""


class Pipelines:
    """Advances pipelines, by the names of their plans in the store."""

    def __init__(
        self,
        client: Client,
        maps: ConfigMaps,
        branch: SpecBranch,
        proposals: PipelineProposals | None,
        leading: Callable[[], bool],
        proposal_interval: float,
    ) -> None:
        """`proposals`: None if the forge is unknown; pipelines that deploy by pull request then wait.
        `proposal_interval`: seconds between two questions to the forge about one pull request.
        """
        self._client, self._maps, self._branch, self._proposals = client, maps, branch, proposals
        self._leading = leading
        self._events = EventRecorder(client, DELIVERY_DAEMON, "Pipeline")
        self._proposal_interval = min(proposal_interval, MAX_PROPOSAL_INTERVAL_S)
        self._asked: dict[str, tuple[str, float]] = {}

    async def advance(self, name: str) -> None:
        """Advance one pipeline as far as possible now.

        Raises ApiError, UnreachableError, DocumentError, HintedError and ValueError; nothing is lost, and a later pass
        goes on.
        """
        for _ in range(_MAX_TURNS):
            plan = self._maps.data(name)
            if plan is None or not self._leading():
                return
            pipeline = read_plan(plan.get(PLAN_KEY, ""))
            held = self._maps.data(state_name(name))
            if held is None:
                raise DeliveryError(f"ConfigMap {state_name(name)} does not exist", "are the specs applied?")
            state = read_state(held.get(STATE_KEY))
            seen = await self._observe(name, pipeline, state)
            decided = decide(pipeline.config, state, seen, self._client.clock.now())
            for action in decided.actions:
                logs.info("action", pipeline=str(pipeline), action=_describe_action(action))
                await self._carry_out(name, pipeline, state, seen, action)
            if decided.state != state:
                await self._maps.write_state(name, decided.state)
                await self._emit_events(pipeline, state, decided.state)
            elif not any(isinstance(each, DeployAction | Revert) for each in decided.actions):
                return  # a change of the repository is seen at once, everything else in the next pass

    # -- observation ---------------------------------------------------------------------------------------------------

    async def _observe(self, name: str, pipeline: DeliveredPipeline, state: PipelineState) -> Seen:
        served = ModelOfService("", "")
        cause = await self._find_cause(pipeline, state)
        if pipeline.target is not None:
            served = await self._branch.served(pipeline.target)
        url = candidate_url(pipeline.config, state.run)
        proposal: Literal["", "open", "closed"] = ""
        if (
            state.phase == "deploying"
            and pipeline.target is not None
            and pipeline.config.deploys == "pullRequest"
            and served.url != url
        ):
            asked = await self._proposal_state(name, pipeline, state)
            proposal = "open" if asked == "open" else "closed" if asked == "closed" else ""
            if asked == "merged":
                await self._branch.fetch()
                served = await self._branch.served(pipeline.target)
                # Somebody has merged it, and then deployed something else.
                proposal = "" if served.url == url else "closed"
        rollout = None
        if pipeline.target is not None:
            if pipeline.target.cluster:
                if state.phase == "rolling" or (state.phase == "deploying" and proposal != "open"):
                    # A record is written before the roll-back that it explains is committed.
                    rollout = await self._branch.outcome(pipeline.target, url, fresh=served.url != url)
            elif state.phase == "rolling" and served.url == url:
                rollout = await rollout_of(self._client, pipeline.target, url)
        jobs = (
            {}
            if state.phase in ("idle", "deploying", "rolling", "reverting")
            else await Jobs(self._client, pipeline).look(WORKING.get(state.phase))
        )
        return Seen(cause, self._branch.head, jobs, served.url, rollout, proposal, served.version, pipeline.lineage)

    async def _find_cause(self, pipeline: DeliveredPipeline, state: PipelineState) -> str:
        trigger = pipeline.trigger
        match trigger.kind:
            case "schedule":
                now = self._client.clock.now()
                due = last_due(trigger.cron, trigger.time_zone or "Etc/UTC", now)
                return _later_moment(due, state.handled, now) or "never"
            case "dataset":
                return trigger.version
            case "checkpoint":
                now = self._client.clock.now()
                begun = now // max(trigger.every, 1) * max(trigger.every, 1)
                return _later_moment(f"{datetime.fromtimestamp(begun, UTC):%Y-%m-%dT%H:%M:%SZ}", state.handled, now)
            case _:
                found = await self._branch.last_change(trigger.paths)
                # The last one may be so long ago that it is not found any more.
                return found or state.handled or "none"

    async def _proposal_state(self, name: str, pipeline: DeliveredPipeline, state: PipelineState) -> str:
        if self._proposals is None:
            raise DeliveryError("the forge of the repository is unknown", "set `forge` in `delivery` of the Cluster")
        known, asked = self._asked.get(name, ("", float("-inf")))
        if known == "open" and monotonic() - asked < self._proposal_interval:
            return known
        found = await asyncio.to_thread(self._proposals.state, proposal_branch(pipeline, state.run))
        self._asked[name] = (found, monotonic())
        return found

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _carry_out(
        self, name: str, pipeline: DeliveredPipeline, state: PipelineState, seen: Seen, action: Action
    ) -> None:
        jobs = Jobs(self._client, pipeline)
        match action:
            case Start():
                await jobs.start(action, _protected_versions(pipeline, seen, state))
            case RemoveAction(step):
                await jobs.remove(step)
            case DeployAction(url, version, by):
                assert pipeline.target is not None
                message = commit_message(pipeline, state, url, version)
                if by == "pullRequest":
                    await self._propose(name, pipeline, state, ModelOfService(url, version), message)
                    return
                await self._branch.deploy(pipeline.target, ModelOfService(url, version), message, only=seen.served)
            case Revert(url, back, version):
                assert pipeline.target is not None
                message = revert_message(pipeline, state, url, back)
                await self._branch.deploy(pipeline.target, ModelOfService(back, version), message, only=url)

    async def _propose(
        self, name: str, pipeline: DeliveredPipeline, state: PipelineState, wanted: ModelOfService, message: str
    ) -> None:
        assert self._proposals is not None
        assert pipeline.target is not None
        branch = proposal_branch(pipeline, state.run)
        await self._branch.propose(pipeline.target, wanted, message, branch)
        # Asked again after the push: a replica that was killed may have opened it.
        if await asyncio.to_thread(self._proposals.state, branch):
            return
        title, _, text = message.partition("\n\n")
        made = await asyncio.to_thread(self._proposals.open, branch, self._branch.name, title, text)
        self._asked.pop(name, None)
        logs.info("pull request", pipeline=str(pipeline), url=made)

    async def _emit_events(self, pipeline: DeliveredPipeline, before: PipelineState, after: PipelineState) -> None:
        """Write events, and count what has ended. One that fails is logged only: the state says the same."""
        ended = before.phase == "stopping" and after.phase == "idle"
        if ended:
            metrics.RUNS.labels(after.reason).inc()
        if not ended and after.run == before.run:
            return
        reason = after.reason if ended else "RunStarted"
        note = f"run {after.run}: {after.message}"
        logs.info("run", pipeline=str(pipeline), run=after.run, reason=reason, note=after.message)
        regarding = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": pipeline.validate,
            "namespace": pipeline.namespace,
        }
        with contextlib.suppress(ApiError, UnreachableError):
            path = f"/apis/batch/v1/namespaces/{pipeline.namespace}/cronjobs/{pipeline.validate}"
            regarding["uid"] = (await self._client.request("GET", path))["metadata"]["uid"]
        await self._events.record(regarding, reason, note, warning=ended and reason not in GOOD)


def _later_moment(due: str, handled: str, now: float) -> str:
    """Return the moment for which a run is due: `due`, unless a later one was handled.

    A clock that was set back, or a schedule with fewer moments, repeats no run. A moment that is far ahead was handled
    by a clock that was wrong, and holds nothing up.
    """
    try:
        at = unix_time(handled)
        return handled if due and unix_time(due) <= at <= now + MAX_CLOCK_SKEW_S else due
    except (ValueError, OverflowError):
        return due  # a version or commit of another trigger, or none


def _protected_versions(pipeline: DeliveredPipeline, seen: Seen, state: PipelineState) -> list[str]:
    """Return the numbers of the versions that are served, or were before, or that specs name."""
    base = f"{pipeline.config.to}/"
    urls = {*pipeline.declared, seen.served, state.before}
    numbers = {url.removeprefix(base).rstrip("/") for url in urls if url.startswith(base)}
    return sorted(each for each in numbers if each.isascii() and each.isdigit() and len(each) < 10)


def _describe_action(action: Action) -> str:
    return f"{type(action).__name__} {' '.join(map(str, action))}"[:300]
