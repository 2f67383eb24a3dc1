"""Shared access to the branch of the specs: git calls run in a thread, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Literal, ParamSpec, TypeVar

from avactl.contracts.delivery import HealthRecord
from avactl.daemons.delivery import metrics
from avactl.daemons.delivery.commits.records import RecordedService, RolledOutModel, RolloutRecords
from avactl.daemons.delivery.commits.repository import ModelOfService, Repository
from avactl.daemons.delivery.plans import PipelineTarget
from avactl.kube import logs

P = ParamSpec("P")
T = TypeVar("T")


class SpecBranch:
    """The repository of the specs. Calls raise DeliveryError where those of `Repository` do."""

    def __init__(self, repository: Repository, interval: float) -> None:
        """`interval`: seconds between two fetches of the branch."""
        self.repository, self._interval = repository, interval
        self._records = RolloutRecords(repository, interval)
        self._turn = asyncio.Lock()
        self._fetched = float("-inf")
        self._problem = ""

    @property
    def head(self) -> str:
        """Newest commit that is known; "" before the first read."""
        return self.repository.head

    @property
    def name(self) -> str:
        """Name of the branch."""
        return self.repository.branch

    async def refresh(self) -> None:
        """Fetch the newest commit if the interval has passed; failures are logged, and retried later."""
        if monotonic() - self._fetched >= self._interval:
            await self.fetch()

    async def fetch(self) -> None:
        """Fetch the newest commit; failures are logged, and retried later."""
        before = self.repository.head
        try:
            head = await self.run(self.repository.fetch)
        except Exception as error:  # a full disk, for example: pipelines go on with what is known
            metrics.GIT_ERRORS.inc()
            if self._problem != str(error):
                logs.warn("git", error=str(error), hint=getattr(error, "hint", ""))
            self._problem = str(error)
            # Failed reads wait for the same interval as successful ones.
            self._fetched = monotonic()
            return
        self._problem = ""
        self._fetched = monotonic()
        if head != before:
            logs.info("commit", branch=self.repository.branch, commit=head)

    async def served(self, target: PipelineTarget) -> ModelOfService:
        """Return the URL and version of a service's model at the head."""
        return await self.run(self.repository.served, target)

    async def last_change(self, paths: Sequence[str]) -> str:
        """Return the newest commit that changes a file of these patterns; "" if there is none."""
        return await self.run(self.repository.last_change, paths)

    async def deploy(self, target: PipelineTarget, wanted: ModelOfService, message: str, *, only: str) -> bool:
        """Commit the URL and version of a model if its URL is `only`; False if nothing changed."""
        return await self.run(partial(self.repository.deploy, only=only), target, wanted, message)

    async def propose(self, target: PipelineTarget, wanted: ModelOfService, message: str, branch: str) -> None:
        """Push a branch with the change; an existing branch is left unchanged."""
        await self.run(self.repository.propose, target, wanted, message, branch)

    async def outcome(
        self, target: PipelineTarget, url: str, *, fresh: bool
    ) -> Literal["progressing", "promoted", "rejected"]:
        """Return how the rollout to a URL ended on another cluster; `progressing` if that is not recorded.

        `fresh`: fetch the records also before the interval has passed.
        """
        model = RolledOutModel(target.cluster, target.namespace, target.service, target.model)
        record = await self.run(partial(self._records.read, fresh=fresh), model)
        return record.outcome if record is not None and record.url == url else "progressing"

    async def record(self, model: RolledOutModel, url: str, outcome: Literal["promoted", "rejected"]) -> bool:
        """Record how the rollout of a model to a URL ended; False if that is recorded already."""
        return await self.run(self._records.write, model, url, outcome)

    async def health(self, service: RecordedService) -> HealthRecord | None:
        """Return what a cluster has recorded of a service's health; None if nothing is."""
        return await self.run(self._records.read_health, service)

    async def record_health(
        self, service: RecordedService, change: Callable[[HealthRecord | None], HealthRecord | None]
    ) -> HealthRecord | None:
        """Record the health of a service, as `RolloutRecords.write_health`."""
        return await self.run(self._records.write_health, service, change)

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a function that reads or changes the repository, in a thread, with exclusive access."""
        async with self._turn:
            return await asyncio.to_thread(call, *arguments, **options)
