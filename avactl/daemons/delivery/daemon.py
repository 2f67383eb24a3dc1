"""The delivery daemon: the plans of pipelines, services and promotions, and one pass over each."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from avactl.base.errors import HintedError
from avactl.contracts.delivery import STATE_KEY
from avactl.contracts.document import DocumentError
from avactl.contracts.names import (
    CONFIG_LABEL,
    DELIVERY_DAEMON,
    HEALTH_REPORT,
    PIPELINE_CONFIG,
    PIPELINE_STATE,
    PROMOTION_CONFIG,
    PROMOTION_STATE,
    ROLLBACK_CONFIG,
    ROLLOUT_REPORT,
)
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.repository import Repository
from avactl.daemons.delivery.config_maps import ConfigMaps, state_name
from avactl.daemons.delivery.pipelines import PipelineProposals, Pipelines
from avactl.daemons.delivery.plans import read_state
from avactl.daemons.delivery.promotions import PromotionProposals, Promotions
from avactl.daemons.delivery.rollbacks import Rollbacks
from avactl.kube import logs
from avactl.kube.access import ClusterAccess
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.elected_daemon import ElectedDaemon, ReplicaOptions, run_elected
from avactl.kube.passes import Passes
from avactl.kube.reflector import Reflector

_MAX_PARALLEL = 4
"""Maximum number of concurrent passes of one namespace."""
_RETRY_INTERVAL_S = 30.0
"""Seconds until a change of the repository that failed is tried again."""
_ABANDONED = "abandoned pull requests"
"""Name of the pass over pull requests that the specs do not ask for any more."""
_BATCH_S = 0.2
"""Seconds between two turns: what the daemon itself writes comes back by the watch."""


@dataclass(frozen=True, slots=True)
class DeliveryOptions(ReplicaOptions):
    """Options of a replica. The namespace is the system namespace: it has the plans, their states and the Lease."""

    interval: float = 5.0
    """Seconds between two passes."""
    git_interval: float = 30.0
    """Seconds between two reads of the branch."""


class DeliveryProposals(PipelineProposals, PromotionProposals, Protocol):
    """Pull requests of a forge. Calls block."""


class DeliveryDaemon(ElectedDaemon):
    """One replica."""

    registry, leader_gauge = metrics.REGISTRY, metrics.LEADER
    stuck_after_s = 1800.0  # fetching a large repository takes long

    def __init__(
        self, client: Client, repository: Repository, proposals: DeliveryProposals | None, options: DeliveryOptions
    ) -> None:
        """`proposals`: None if the forge is unknown; pipelines and promotions by pull request then wait."""
        super().__init__(options.listen, options.leader(client))
        self._options = options
        self._maps = ConfigMaps(client, options.namespace)
        self._branch = SpecBranch(repository, options.git_interval)
        self._pipelines = Pipelines(client, self._maps, self._branch, proposals, self.leading, 2 * options.git_interval)
        self._rollbacks = Rollbacks(client, self._maps, self._branch, proposals, options.git_interval)
        self._promotions = Promotions(client, self._maps, self._branch, proposals, options.git_interval)
        self._passes = Passes(self._wake.set, _MAX_PARALLEL)
        self._problems: dict[str, str] = {}
        self._later: dict[str, float] = {}
        kinds = ",".join(
            (
                PIPELINE_CONFIG,
                PIPELINE_STATE,
                ROLLBACK_CONFIG,
                ROLLOUT_REPORT,
                HEALTH_REPORT,
                PROMOTION_CONFIG,
                PROMOTION_STATE,
            )
        )
        path, query = (
            f"/api/v1/namespaces/{options.namespace}/configmaps",
            {"labelSelector": f"{CONFIG_LABEL} in ({kinds})"},
        )
        self._reflectors.append(Reflector(client, path, self._maps, self._wake.set, query=query))

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:

            async def turn() -> None:
                plans = [
                    (name, advance)
                    for kind, advance in (
                        (PIPELINE_CONFIG, self._advance_pipeline),
                        (ROLLBACK_CONFIG, self._advance_service),
                        (PROMOTION_CONFIG, self._advance_promotion),
                    )
                    for name in self._maps.of(kind)
                ]
                if self._promotions.is_review_due([name for name, _ in plans]):
                    plans.append((_ABANDONED, self._close_abandoned))
                if plans:
                    await self._branch.refresh()
                if self._branch.head:
                    for name, advance in plans:
                        self._passes.begin(group, advance, name, _namespace_of(name))

            await self._repeat(turn, self._options.interval, _BATCH_S)

    def _is_stuck(self) -> bool:
        return super()._is_stuck() or self._passes.longest() >= self.stuck_after_s

    async def _advance_pipeline(self, name: str) -> None:
        await self._maps.write_problem(name, await self._advance_plan(name, self._pipelines.advance))

    async def _advance_service(self, name: str) -> None:
        await self._advance_plan(name, self._rollbacks.advance)

    async def _advance_promotion(self, name: str) -> None:
        await self._maps.write_problem(name, await self._advance_plan(name, self._promotions.advance))

    async def _close_abandoned(self, name: str) -> None:
        await self._advance_plan(name, lambda _: self._promotions.close_abandoned())

    async def _advance_plan(self, name: str, advance: Callable[[str], Awaitable[None]]) -> str:
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
        except (DocumentError, HintedError, ValueError) as error:
            hint = getattr(error, "hint", "")
            problem = f"{error}: {hint}" if hint else str(error)
            self._later[name] = monotonic() + min(_RETRY_INTERVAL_S, 6 * self._options.interval)
        except Exception:  # a defect with one plan must not stop the others
            problem = traceback.format_exc()
        if problem:
            metrics.ERRORS.inc()
        if problem != self._problems.get(name, ""):
            if problem:
                logs.warn("pass failed", plan=name, error=problem[-2000:])
            self._problems[name] = problem
        return _last_line(problem)

    async def _update_metrics(self) -> None:
        phases: Counter[str] = Counter()
        for name in self._maps.of(PIPELINE_CONFIG):
            with contextlib.suppress(DocumentError):
                phases[read_state((self._maps.data(state_name(name)) or {}).get(STATE_KEY)).phase] += 1
        metrics.PIPELINES.clear()
        for phase, count in phases.items():
            metrics.PIPELINES.labels(phase).set(count)


def _namespace_of(name: str) -> str:
    """Return the namespace of a plan: their names are `KIND.NAMESPACE.NAME`."""
    return name.split(".")[1] if name.count(".") > 1 else ""


def _last_line(problem: str) -> str:
    """Return the line of a problem, or of a traceback, that says what is wrong."""
    return problem.strip().splitlines()[-1][:1000] if problem else ""


async def run(
    access: ClusterAccess, repository: Repository, proposals: DeliveryProposals | None, options: DeliveryOptions
) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    await run_elected(
        Client(access, DELIVERY_DAEMON), lambda client: DeliveryDaemon(client, repository, proposals, options)
    )
