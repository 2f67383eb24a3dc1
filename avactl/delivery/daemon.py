"""The delivery daemon: leader election, the plans of pipelines, and one pass a pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, Protocol

from avactl.cron import last_due
from avactl.delivery import metrics
from avactl.delivery.config import Pipeline, PlanError, dump_state, parse_plan, parse_state
from avactl.delivery.decide import Action, Deploy, Remove, Revert, Seen, Start, State, candidate, decide
from avactl.delivery.jobs import Jobs
from avactl.delivery.messages import commit_message, proposal_branch, revert_message
from avactl.delivery.repository import DeliveryError, Repository, Served
from avactl.delivery.rollouts import rollout_of
from avactl.errors import HintedError
from avactl.kube import logs
from avactl.kube.access import Access
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError
from avactl.kube.daemons import run_elected, run_until_signal
from avactl.kube.events import events_path, new_event
from avactl.kube.http_server import serve
from avactl.kube.leader import Leader
from avactl.kube.reflector import Reflector
from avactl.kube.replica import new_identity
from avactl.names import CONFIG_LABEL, DELIVERY_DAEMON, PIPELINE_CONFIG, PIPELINE_STATE

PLAN_KEY, STATE_KEY, PROBLEM_KEY = "pipeline.json", "state.json", "problem"
_TURNS = 12
"""Decisions of one pass over a pipeline."""
_PARALLEL = 8
_ASK = 60.0
"""Seconds between two questions to the forge about one pull request."""
_RETRY = 30.0
"""Seconds until a change of the repository that failed is tried again."""
STUCK = 1800.0
"""Seconds after which a pass counts as stuck: fetching a large repository takes long."""
GOOD = ("Deployed", "Published", "Proposed", "Unchanged", "Running")
Body = dict[str, Any]


class Proposals(Protocol):
    """Pull requests of a forge. Calls block."""

    def state(self, branch: str) -> str:
        """Return `open`, `closed` (without a merge) or `merged` for the newest of a branch; "" if there is none."""

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """Open one, and return its URL."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a replica."""

    namespace: str
    """System namespace: plans, states and the Lease."""
    lease: str = ""
    """Name of the Lease; empty for a single replica without leader election."""
    listen: str = ""
    interval: float = 5.0
    """Seconds between two passes."""
    git_interval: float = 30.0
    """Seconds between two reads of the branch."""


class Daemon:
    """One replica."""

    def __init__(self, client: Client, repository: Repository, proposals: Proposals | None, options: Options) -> None:
        """`proposals`: None if the forge is unknown; pipelines that deploy by pull request then wait."""
        self._client, self._repository, self._proposals, self._options = client, repository, proposals, options
        self._maps: dict[str, Body] = {}
        self._wake = asyncio.Event()
        self._git = asyncio.Lock()
        self._fetched = float("-inf")
        self._began = monotonic()
        self._problems: dict[str, str] = {}
        self._later: dict[str, float] = {}
        self._asked: dict[str, tuple[str, float]] = {}
        self._leader = None
        if options.lease:
            self._leader = Leader(client, options.namespace, options.lease, new_identity())
        kinds = f"{CONFIG_LABEL} in ({PIPELINE_CONFIG},{PIPELINE_STATE})"
        self._reflector = Reflector(
            client, f"/api/v1/namespaces/{options.namespace}/configmaps", self, self._wake.set,
            query={"labelSelector": kinds},
        )  # fmt: skip

    # -- the ConfigMaps, as a store of the reflector -------------------------------------------------------------------

    def put(self, item: Body) -> None:
        """Add or update a ConfigMap."""
        name = item["metadata"]["name"]
        known = self._maps.get(name)
        if known is None or _version(item) >= _version(known):
            self._maps[name] = item

    def remove(self, key: str) -> None:
        """Remove a ConfigMap."""
        self._maps.pop(key.rpartition("/")[2], None)

    def keys(self) -> list[str]:
        """Return the keys of all ConfigMaps."""
        return [f"{self._options.namespace}/{name}" for name in self._maps]

    # -- the loop ------------------------------------------------------------------------------------------------------

    def leading(self) -> bool:
        """Return True if this replica is the leader."""
        return self._leader is None or self._leader.leading()

    async def run(self) -> None:
        """Run until cancelled. Raises LostError, in an exception group, if the lease is lost."""
        runner = None
        if self._options.listen:
            runner = await serve(
                self._options.listen, self._alive, self._reflector.synced.is_set, self._collect, metrics.REGISTRY
            )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reflector.run())
                if self._leader is not None:
                    group.create_task(self._leader.run())
                group.create_task(self._act())
        finally:
            if self._leader is not None:
                await asyncio.shield(self._leader.release())
            if runner is not None:
                await runner.cleanup()

    async def _act(self) -> None:
        await self._reflector.synced.wait()
        if self._leader is not None:
            await self._leader.won.wait()
        turn = asyncio.Semaphore(_PARALLEL)

        async def pass_over(name: str) -> None:
            async with turn:
                await self._pass(name)

        while True:
            self._wake.clear()
            self._began = monotonic()
            if self.leading():
                plans = [name for name in self._maps if _kind(self._maps[name]) == PIPELINE_CONFIG]
                if plans and monotonic() - self._fetched >= self._options.git_interval:
                    await self._fetch()
                if self._repository.head:
                    await asyncio.gather(*map(pass_over, plans))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.interval):
                    await self._wake.wait()
            # What the daemon itself writes comes back by the watch.
            await asyncio.sleep(min(0.2, self._options.interval))

    async def _fetch(self) -> None:
        before = self._repository.head
        try:
            async with self._git:
                head = await asyncio.to_thread(self._repository.fetch)
        except Exception as error:  # a full disk, for example: pipelines go on with what is known
            metrics.GIT_ERRORS.inc()
            if self._problems.get("") != str(error):
                logs.warn("git", error=str(error), hint=getattr(error, "hint", ""))
            self._problems[""] = str(error)
            # The next read comes after as many seconds as a good one.
            self._fetched = monotonic()
            return
        self._problems.pop("", None)
        self._fetched = monotonic()
        if head != before:
            logs.info("commit", branch=self._repository.branch, commit=head)

    # -- one pipeline --------------------------------------------------------------------------------------------------

    async def _pass(self, name: str) -> None:
        """Bring one pipeline forward; what fails is that pipeline's error, and is tried again."""
        if monotonic() < self._later.get(name, 0.0):
            return
        problem = ""
        try:
            await self._advance(name)
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.status == 409:
                return  # the state is older than thought: the watch brings it
            problem = str(error)
        except (PlanError, HintedError, ValueError) as error:
            hint = getattr(error, "hint", "")
            problem = f"{error}: {hint}" if hint else str(error)
            self._later[name] = monotonic() + min(_RETRY, 6 * self._options.interval)
        except Exception:  # a defect with one pipeline must not stop the others
            problem = traceback.format_exc()
        if problem:
            metrics.ERRORS.inc()
        if problem != self._problems.get(name, ""):
            if problem:
                logs.warn("pass failed", pipeline=name, error=problem[-2000:])
            self._problems[name] = problem
        await self._tell_problem(name, problem.strip().splitlines()[-1][:1000] if problem else "")

    async def _advance(self, name: str) -> None:
        for _ in range(_TURNS):
            plan = self._maps.get(name)
            if plan is None or not self.leading():
                return
            pipeline = parse_plan((plan.get("data") or {}).get(PLAN_KEY, ""))
            held = self._maps.get(state_name(name))
            if held is None:
                raise DeliveryError(f"ConfigMap {state_name(name)} does not exist", "are the specs applied?")
            state = parse_state((held.get("data") or {}).get(STATE_KEY))
            seen = await self._seen(name, pipeline, state)
            decided = decide(pipeline.config, state, seen, time.time())
            for action in decided.actions:
                logs.info("action", pipeline=str(pipeline), action=_worded(action))
                await self._carry_out(name, pipeline, state, seen, action)
            if decided.state != state:
                await self._write(name, decided.state)
                await self._told(pipeline, state, decided.state)
            elif not any(isinstance(each, Deploy | Revert) for each in decided.actions):
                return  # a change of the repository is seen at once, everything else in the next pass

    async def _seen(self, name: str, pipeline: Pipeline, state: State) -> Seen:
        served = Served("", "")
        cause = await self._cause(pipeline, state)
        if pipeline.target is not None:
            async with self._git:
                served = await asyncio.to_thread(self._repository.served, pipeline.target)
        url = candidate(pipeline.config, state.run)
        rollout = None
        if state.phase == "rolling" and pipeline.target is not None and served.url == url:
            rollout = await rollout_of(self._client, pipeline.target, url)
        proposal: Literal["", "open", "closed"] = ""
        if (
            state.phase == "deploying"
            and pipeline.target is not None
            and pipeline.config.deploys == "pullRequest"
            and served.url != url
        ):
            asked = await self._proposal(name, pipeline, state)
            proposal = "open" if asked == "open" else "closed" if asked == "closed" else ""
            if asked == "merged":
                await self._fetch()
                async with self._git:
                    served = await asyncio.to_thread(self._repository.served, pipeline.target)
                # Somebody has merged it, and then deployed something else.
                proposal = "" if served.url == url else "closed"
        jobs = {} if state.phase in ("idle", "deploying", "rolling", "reverting") else await Jobs(
            self._client, pipeline
        ).look()  # fmt: skip
        return Seen(
            cause, self._repository.head, jobs, served.url, rollout, proposal, served.version, pipeline.lineage
        )  # fmt: skip

    async def _cause(self, pipeline: Pipeline, state: State) -> str:
        trigger = pipeline.trigger
        match trigger.kind:
            case "schedule":
                return last_due(trigger.cron, trigger.zone, time.time()) or "never"
            case "dataset":
                return trigger.version
            case "checkpoint":
                due = time.time() // max(trigger.every, 1) * max(trigger.every, 1)
                return f"{datetime.fromtimestamp(due, UTC):%Y-%m-%dT%H:%M:%SZ}"
            case _:
                async with self._git:
                    found = await asyncio.to_thread(self._repository.last_change, trigger.paths)
                # The last one may be so long ago that it is not found any more.
                return found or state.handled or "none"

    async def _proposal(self, name: str, pipeline: Pipeline, state: State) -> str:
        if self._proposals is None:
            raise DeliveryError("the forge of the repository is unknown", "set `forge` in `delivery` of the Cluster")
        known, asked = self._asked.get(name, ("", float("-inf")))
        if known == "open" and monotonic() - asked < _ASK:
            return known
        found = await asyncio.to_thread(self._proposals.state, proposal_branch(pipeline, state.run))
        self._asked[name] = (found, monotonic())
        return found

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _carry_out(self, name: str, pipeline: Pipeline, state: State, seen: Seen, action: Action) -> None:
        jobs = Jobs(self._client, pipeline)
        match action:
            case Start():
                await jobs.start(action, _kept(pipeline, seen, state))
            case Remove(step):
                await jobs.remove(step)
            case Deploy(url, version, by):
                assert pipeline.target is not None
                message = commit_message(pipeline, state, url, version)
                if by == "pullRequest":
                    await self._propose(name, pipeline, state, Served(url, version), message)
                    return
                async with self._git:
                    await asyncio.to_thread(
                        self._repository.deploy, pipeline.target, Served(url, version), message, only=seen.served
                    )
            case Revert(url, back, version):
                assert pipeline.target is not None
                message = revert_message(pipeline, state, url, back)
                async with self._git:
                    await asyncio.to_thread(
                        self._repository.deploy, pipeline.target, Served(back, version), message, only=url
                    )

    async def _propose(self, name: str, pipeline: Pipeline, state: State, wanted: Served, message: str) -> None:
        assert self._proposals is not None
        assert pipeline.target is not None
        branch = proposal_branch(pipeline, state.run)
        async with self._git:
            await asyncio.to_thread(self._repository.propose, pipeline.target, wanted, message, branch)
        # Asked again after the push: a replica that was killed may have opened it.
        if await asyncio.to_thread(self._proposals.state, branch):
            return
        title, _, text = message.partition("\n\n")
        made = await asyncio.to_thread(self._proposals.open, branch, self._repository.branch, title, text)
        self._asked.pop(name, None)
        logs.info("pull request", pipeline=str(pipeline), url=made)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write(self, name: str, state: State) -> None:
        """Write a state if nobody has written since it was read. Raises ApiError (409) otherwise."""
        await self._patch(name, {STATE_KEY: dump_state(state)})

    async def _tell_problem(self, name: str, problem: str) -> None:
        """Write down why a pipeline does not go on, for people."""
        held = self._maps.get(state_name(name))
        if held is None or (held.get("data") or {}).get(PROBLEM_KEY, "") == problem:
            return
        with contextlib.suppress(ApiError, UnreachableError):
            await self._patch(name, {PROBLEM_KEY: problem or None})

    async def _patch(self, name: str, data: Body) -> None:
        held = self._maps[state_name(name)]
        metadata = held["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": data}
        path = f"/api/v1/namespaces/{self._options.namespace}/configmaps/{metadata['name']}"
        self.put(await self._client.request("PATCH", path, body, content_type=MERGE))

    async def _told(self, pipeline: Pipeline, before: State, after: State) -> None:
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
            "apiVersion": "batch/v1", "kind": "CronJob", "name": pipeline.validate, "namespace": pipeline.namespace
        }  # fmt: skip
        with contextlib.suppress(ApiError, UnreachableError):
            path = f"/apis/batch/v1/namespaces/{pipeline.namespace}/cronjobs/{pipeline.validate}"
            regarding["uid"] = (await self._client.request("GET", path))["metadata"]["uid"]
        made = new_event(
            DELIVERY_DAEMON, "Pipeline", regarding, reason, note, warning=ended and reason not in GOOD
        )  # fmt: skip
        try:
            await self._client.send("POST", events_path(made), made)
        except (ApiError, UnreachableError) as error:
            logs.warn("event not written", reason=reason, error=str(error))

    # -- probes and metrics --------------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        waits = not self._reflector.synced.is_set() or (self._leader is not None and not self._leader.won.is_set())
        return waits or monotonic() - self._began < STUCK

    def _collect(self) -> None:
        metrics.LEADER.set(self.leading())
        phases: Counter[str] = Counter()
        for name, held in self._maps.items():
            if _kind(held) == PIPELINE_CONFIG:
                data = (self._maps.get(state_name(name)) or {}).get("data") or {}
                with contextlib.suppress(PlanError):
                    phases[parse_state(data.get(STATE_KEY)).phase] += 1
        metrics.PIPELINES.clear()
        for phase, count in phases.items():
            metrics.PIPELINES.labels(phase).set(count)


def state_name(plan: str) -> str:
    """Return the name of the ConfigMap with the state of a pipeline, by that of its plan."""
    return f"pipeline-state{plan.removeprefix('pipeline')}"


def _kind(item: Body) -> str:
    found: str = (item["metadata"].get("labels") or {}).get(CONFIG_LABEL, "")
    return found


def _version(item: Body) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _kept(pipeline: Pipeline, seen: Seen, state: State) -> list[str]:
    """Return the numbers of the versions that are served, or were before, or that specs name."""
    base = f"{pipeline.config.to}/"
    urls = {*pipeline.declared, seen.served, state.before}
    numbers = {url.removeprefix(base).rstrip("/") for url in urls if url.startswith(base)}
    return sorted(each for each in numbers if each.isascii() and each.isdigit() and len(each) < 10)


def _worded(action: Action) -> str:
    return f"{type(action).__name__} {' '.join(map(str, action))}"[:300]


async def run(access: Access, repository: Repository, proposals: Proposals | None, options: Options) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    await run_until_signal(
        lambda: run_elected(
            lambda: Client(access, DELIVERY_DAEMON),
            lambda client: Daemon(client, repository, proposals, options).run(),
        )
    )
