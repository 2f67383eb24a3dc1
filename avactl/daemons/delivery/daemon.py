"""The delivery daemon: leader election, the plans of pipelines and services, and one pass over each."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from avactl.base.errors import HintedError
from avactl.contracts.names import CONFIG_LABEL, DELIVERY_DAEMON, PIPELINE_CONFIG, PIPELINE_STATE, ROLLBACK_CONFIG
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.branch import Branch
from avactl.daemons.delivery.commits.repository import Repository
from avactl.daemons.delivery.config import PlanError, parse_state
from avactl.daemons.delivery.config_maps import STATE_KEY, ConfigMaps, state_name
from avactl.daemons.delivery.pipelines import Pipelines, Proposals
from avactl.daemons.delivery.rollbacks import Rollbacks
from avactl.kube import logs
from avactl.kube.access import Access
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.daemons import run_elected, run_until_signal
from avactl.kube.http_server import serve
from avactl.kube.leader import Leader
from avactl.kube.passes import Passes
from avactl.kube.reflector import Reflector
from avactl.kube.replica import new_identity

_PARALLEL = 4
"""Maximum number of concurrent passes of one namespace."""
_RETRY = 30.0
"""Seconds until a change of the repository that failed is tried again."""
STUCK = 1800.0
"""Seconds after which a pass counts as stuck: fetching a large repository takes long."""


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
        self._options = options
        self._maps = ConfigMaps(client, options.namespace)
        self._branch = Branch(repository, options.git_interval)
        self._pipelines = Pipelines(client, self._maps, self._branch, proposals, self.leading, 2 * options.git_interval)
        self._rollbacks = Rollbacks(client, self._maps, self._branch, proposals, options.git_interval)
        self._wake = asyncio.Event()
        self._began = monotonic()
        self._passes = Passes(self._wake.set, _PARALLEL)
        self._problems: dict[str, str] = {}
        self._later: dict[str, float] = {}
        self._leader = None
        if options.lease:
            self._leader = Leader(client, options.namespace, options.lease, new_identity())
        kinds = f"{CONFIG_LABEL} in ({PIPELINE_CONFIG},{PIPELINE_STATE},{ROLLBACK_CONFIG})"
        self._reflector = Reflector(
            client, f"/api/v1/namespaces/{options.namespace}/configmaps", self._maps, self._wake.set,
            query={"labelSelector": kinds},
        )  # fmt: skip

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
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._began = monotonic()
                if self.leading():
                    pipelines, services = self._maps.of(PIPELINE_CONFIG), self._maps.of(ROLLBACK_CONFIG)
                    if pipelines or services:
                        await self._branch.refresh()
                    if self._branch.head:
                        for name in pipelines:
                            self._passes.begin(group, self._pipeline, name, _namespace(name))
                        for name in services:
                            self._passes.begin(group, self._service, name, _namespace(name))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.interval):
                        await self._wake.wait()
                # What the daemon itself writes comes back by the watch.
                await asyncio.sleep(min(0.2, self._options.interval))

    async def _pipeline(self, name: str) -> None:
        await self._maps.write_problem(name, await self._pass(name, self._pipelines.advance))

    async def _service(self, name: str) -> None:
        await self._pass(name, self._rollbacks.advance)

    async def _pass(self, name: str, advance: Callable[[str], Awaitable[None]]) -> str:
        """Advance one plan; return its problem, which a later pass retries."""
        if monotonic() < self._later.get(name, 0.0) or not self.leading():
            return _last_line(self._problems.get(name, ""))
        problem = ""
        try:
            await advance(name)
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.status == 409:
                return _last_line(self._problems.get(name, ""))  # the state is older than thought: the watch brings it
            problem = str(error)
        except (PlanError, HintedError, ValueError) as error:
            hint = getattr(error, "hint", "")
            problem = f"{error}: {hint}" if hint else str(error)
            self._later[name] = monotonic() + min(_RETRY, 6 * self._options.interval)
        except Exception:  # a defect with one plan must not stop the others
            problem = traceback.format_exc()
        if problem:
            metrics.ERRORS.inc()
        if problem != self._problems.get(name, ""):
            if problem:
                logs.warn("pass failed", plan=name, error=problem[-2000:])
            self._problems[name] = problem
        return _last_line(problem)

    # -- probes and metrics --------------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        waits = not self._reflector.synced.is_set() or (self._leader is not None and not self._leader.won.is_set())
        return waits or max(monotonic() - self._began, self._passes.longest()) < STUCK

    def _collect(self) -> None:
        metrics.LEADER.set(self.leading())
        phases: Counter[str] = Counter()
        for name in self._maps.of(PIPELINE_CONFIG):
            with contextlib.suppress(PlanError):
                phases[parse_state((self._maps.data(state_name(name)) or {}).get(STATE_KEY)).phase] += 1
        metrics.PIPELINES.clear()
        for phase, count in phases.items():
            metrics.PIPELINES.labels(phase).set(count)


def _namespace(name: str) -> str:
    """Return the namespace of a plan: their names are `KIND.NAMESPACE.NAME`."""
    return name.split(".")[1] if name.count(".") > 1 else ""


def _last_line(problem: str) -> str:
    """Return the line of a problem, or of a traceback, that says what is wrong."""
    return problem.strip().splitlines()[-1][:1000] if problem else ""


async def run(access: Access, repository: Repository, proposals: Proposals | None, options: Options) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    await run_until_signal(
        lambda: run_elected(
            lambda: Client(access, DELIVERY_DAEMON),
            lambda client: Daemon(client, repository, proposals, options).run(),
        )
    )
