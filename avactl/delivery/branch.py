"""The branch of the specs for several tasks: one call of git at a time, each in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import ParamSpec, TypeVar

from avactl.delivery import metrics
from avactl.delivery.commits.repository import Repository, Served
from avactl.delivery.config import Target
from avactl.kube import logs

P = ParamSpec("P")
T = TypeVar("T")


class Branch:
    """The repository of the specs. Calls raise DeliveryError where those of `Repository` do."""

    def __init__(self, repository: Repository, interval: float) -> None:
        """`interval`: seconds between two reads of the branch."""
        self.repository, self._interval = repository, interval
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
        """Read the newest commit if the last read was long ago; what fails is logged, and tried again."""
        if monotonic() - self._fetched >= self._interval:
            await self.fetch()

    async def fetch(self) -> None:
        """Read the newest commit; what fails is logged, and tried again."""
        before = self.repository.head
        try:
            head = await self.run(self.repository.fetch)
        except Exception as error:  # a full disk, for example: pipelines go on with what is known
            metrics.GIT_ERRORS.inc()
            if self._problem != str(error):
                logs.warn("git", error=str(error), hint=getattr(error, "hint", ""))
            self._problem = str(error)
            # The next read comes after as many seconds as a good one.
            self._fetched = monotonic()
            return
        self._problem = ""
        self._fetched = monotonic()
        if head != before:
            logs.info("commit", branch=self.repository.branch, commit=head)

    async def served(self, target: Target) -> Served:
        """Return the URL and version of a service's model at the head."""
        return await self.run(self.repository.served, target)

    async def last_change(self, paths: Sequence[str]) -> str:
        """Return the newest commit that changes a file of these patterns; "" if there is none."""
        return await self.run(self.repository.last_change, paths)

    async def deploy(self, target: Target, wanted: Served, message: str, *, only: str) -> bool:
        """Commit the URL and version of a model if its URL is `only`; False if nothing was to be done."""
        return await self.run(partial(self.repository.deploy, only=only), target, wanted, message)

    async def propose(self, target: Target, wanted: Served, message: str, branch: str) -> None:
        """Push a branch with the change; one that is there stays as it is."""
        await self.run(self.repository.propose, target, wanted, message, branch)

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a function that reads or changes the repository, in a thread, with nothing else beside it."""
        async with self._turn:
            return await asyncio.to_thread(call, *arguments, **options)
