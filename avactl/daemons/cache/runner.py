"""One tier: its engine, and the tasks that run on it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Protocol

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.cache import DatasetConfig, DatasetStatus, TierConfig, TierStatus
from avactl.daemons.cache import metrics
from avactl.daemons.cache.alluxio.client import AlluxioEngine
from avactl.daemons.cache.drain import DrainGuard
from avactl.daemons.cache.engine import CacheEngine, EngineError
from avactl.daemons.cache.fuse_mounts import FuseMounts
from avactl.daemons.cache.prewarm import Prewarmer
from avactl.daemons.cache.status import MAX_TEXT
from avactl.daemons.cache.writeback.push import Flush, WriteBackTask
from avactl.kube import logs
from avactl.kube.client import ApiError, UnreachableError

STUCK = 1200.0
"""Seconds after which a pass that does not end counts as stuck: twice those that a list of millions of files has."""
EVICT_REFUSED = (
    "refused: the configuration is of an older avactl and does not say that no pods mount the directories, which would "
    "not find evicted files at their path; files stay on the durable store"
)
ENGINES: dict[str, Callable[[TierConfig], CacheEngine]] = {"alluxio": lambda tier: AlluxioEngine(tier.masters)}


class CacheWorld(Protocol):
    """The parts of the daemon that its tasks use."""

    known_datasets: Mapping[str, DatasetStatus]
    """Datasets of the status that the last leader wrote."""

    def leading(self) -> bool: ...

    def datasets(self, tier: str) -> list[DatasetConfig]: ...

    def pending(self) -> set[str]: ...

    def flushes(self, tier: TierConfig) -> list[Flush]: ...

    def node_of(self, address: str) -> str: ...

    def guard(self, tier: str, write_back: WriteBackTask) -> DrainGuard: ...

    def fuse_mounts(self, tier: TierConfig, directory: str, facts: TierStatus) -> FuseMounts: ...

    async def tell_dataset(self, dataset: DatasetConfig, reason: str, note: str, warning: bool) -> None: ...


class TierRunner:
    """Runs the tasks of one tier, each in a loop of its own: a task that fails is that tier's error."""

    def __init__(self, tier: TierConfig, world: CacheWorld, interval: float) -> None:
        self.tier, self._leading, self._interval = tier, world.leading, interval
        self.engine = ENGINES[tier.engine](tier)
        self.prewarmer = Prewarmer(
            self.engine,
            lambda: world.datasets(tier.name),
            world.pending,
            world.node_of,
            world.tell_dataset,
            world.known_datasets,
        )
        self.facts = TierStatus()
        """The tier's part of the status."""
        self.errors: dict[str, str] = {}
        """The last failure of each task."""
        self._began: dict[str, float] = {}
        """When each task began its last pass."""
        self.tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("capacity", self._measure),
            ("prewarm", self.prewarmer.tick),
        ]
        if tier.volume_directory:
            self.tasks.append(("fuse", world.fuse_mounts(tier, tier.volume_directory, self.facts).tick))
        self.write_back: WriteBackTask | None = None
        if tier.write_back is not None:
            if tier.write_back.evict_refused:
                self.errors["evict"] = EVICT_REFUSED
            self.write_back = WriteBackTask(
                self.engine, tier, tier.write_back, self.facts, lambda: world.flushes(tier), world.leading
            )
            self.tasks.append(("writeback", self.write_back.tick))
            guard = world.guard(tier.name, self.write_back)
            self.write_back.hosts = guard.hosts
            self.tasks.append(("drain", guard.tick))

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, task in self.tasks:
                    group.create_task(self._run_task(name, task))
        finally:
            await self.prewarmer.close()
            if self.write_back is not None:
                await self.write_back.close()
            with contextlib.suppress(Exception):
                await self.engine.close()

    def alive(self) -> bool:
        """Return False if a pass of a task does not end."""
        return all(monotonic() - began < STUCK for began in self._began.values())

    async def _run_task(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._began[name] = monotonic()
            if self._leading():
                try:
                    await task()
                    self.errors.pop(name, None)
                except (EngineError, ApiError, UnreachableError) as error:
                    self._record_failure(name, error)
                except Exception as error:  # a defect in one tier must not stop the others
                    self._record_failure(name, error, traceback.format_exc())
            await asyncio.sleep(self._interval)

    def _record_failure(self, name: str, error: Exception, trace: str = "") -> None:
        text = visible_text(shorten_middle(str(error) or type(error).__name__, MAX_TEXT))
        metrics.ERRORS.labels(self.tier.name, name).inc()
        if self.errors.get(name) != text:
            logs.warn("task failed", tier=self.tier.name, task=name, error=text, **({"trace": trace} if trace else {}))
        self.errors[name] = text

    async def _measure(self) -> None:
        workers, reads = await self.engine.workers(), await self.engine.reads()
        capacity, used = sum(each.capacity for each in workers), sum(each.used for each in workers)
        facts = self.facts
        facts.role = self.tier.role
        facts.workers = len(workers)
        facts.capacity_bytes = capacity
        facts.used_bytes = used
        facts.fill = round(used / capacity, 4) if capacity else 0.0
        facts.read_bytes = reads.total
        facts.store_read_bytes = reads.store
        facts.updated = int(time.time())
        for gauge, value in ((metrics.CAPACITY, capacity), (metrics.USED, used), (metrics.WORKERS, len(workers))):
            gauge.labels(self.tier.name).set(value)
        metrics.READ.labels(self.tier.name).set(reads.total)
        metrics.STORE_READ.labels(self.tier.name).set(reads.store)

    def status(self) -> TierStatus:
        """Return the tier's part of the status."""
        error = "; ".join(f"{name}: {text}" for name, text in sorted(self.errors.items()))
        return self.facts.replace(error=error[: 3 * MAX_TEXT])
