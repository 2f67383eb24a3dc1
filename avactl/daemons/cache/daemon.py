"""The cache daemon: watches, one runner a tier, and the status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

from avactl.contracts.cache import (
    MAX_STATUS_ENTRIES,
    CacheStatus,
    DatasetConfig,
    DatasetStatus,
    FlushStatus,
    TierConfig,
    TierStatus,
)
from avactl.contracts.document import DocumentError
from avactl.contracts.names import (
    CACHE_DATASET_CONFIG,
    CACHE_FLUSH_CONFIG,
    CACHE_NAMESPACE,
    CACHE_TIER_CONFIG,
    CONFIG_LABEL,
    MANAGED_BY,
    MANAGER,
)
from avactl.daemons.cache import metrics
from avactl.daemons.cache.configs import Configs
from avactl.daemons.cache.drain import DrainGuard
from avactl.daemons.cache.fuse_mounts import FuseMounts
from avactl.daemons.cache.pods import Nodes, PendingPods, TierPods, TierVolumes
from avactl.daemons.cache.runner import STUCK, TierRunner
from avactl.daemons.cache.status import StatusWriter, keep_least_cached
from avactl.daemons.cache.writeback.push import Flush, WriteBackTask
from avactl.kube import logs
from avactl.kube.access import ClusterAccess
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.elected_daemon import ElectedDaemon, ReplicaOptions, run_elected
from avactl.kube.events import EventRecorder
from avactl.kube.reflector import Reflector

CONTROLLER = "avactl-cache"
"""Reporting controller of events, and user agent."""
_MAX_FLUSHES, _OLDEST_FLUSH = 200, 86_400.0
"""Flushes that are served at once, and the seconds for which one is."""


@dataclass(frozen=True, slots=True)
class CacheOptions(ReplicaOptions):
    """Options of a replica; the namespace is also that of the cache tiers."""

    namespace: str = CACHE_NAMESPACE
    interval: float = 2.0
    """Seconds between two passes over a tier."""


class CacheDaemon(ElectedDaemon):
    """One replica."""

    registry, leader_gauge, stuck_after_s = metrics.REGISTRY, metrics.LEADER, STUCK

    def __init__(self, client: Client, options: CacheOptions) -> None:
        super().__init__(options.listen, options.leader(client))
        self._client, self._options = client, options
        self.configs = Configs()
        self.writer = StatusWriter(client, options.namespace)
        self._events = EventRecorder(client, CONTROLLER, "Caching")
        self.runners: dict[str, TierRunner] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.pending_pods, self.tier_pods, self.nodes = PendingPods(), TierPods(), Nodes()
        self.volumes = TierVolumes()
        self.known_datasets: Mapping[str, DatasetStatus] = {}
        selector = f"{CONFIG_LABEL} in ({CACHE_TIER_CONFIG},{CACHE_DATASET_CONFIG},{CACHE_FLUSH_CONFIG})"
        path = f"/api/v1/namespaces/{options.namespace}/configmaps"
        self._reflectors = [
            Reflector(client, path, self.configs, self._wake.set, query={"labelSelector": selector}),
            Reflector(client, "/api/v1/pods", self.pending_pods, query={"fieldSelector": "status.phase=Pending"}),
            Reflector(client, f"/api/v1/namespaces/{options.namespace}/pods", self.tier_pods),
            Reflector(client, "/api/v1/nodes", self.nodes),
            Reflector(
                client, "/api/v1/persistentvolumes", self.volumes, query={"labelSelector": f"{MANAGED_BY}={MANAGER}"}
            ),
        ]

    async def _work(self) -> None:
        self.known_datasets = (await self._read_status()).datasets
        await self._repeat(self._turn, self._options.interval)

    async def _turn(self) -> None:
        await self._run_tiers()
        try:
            await self._report()
        except (ApiError, UnreachableError, DocumentError) as error:
            logs.warn("status not written", error=str(error))

    async def _clean_up(self) -> None:
        await self._stop(list(self._running))

    def _is_stuck(self) -> bool:
        return super()._is_stuck() or not all(runner.alive() for runner in self.runners.values())

    async def _read_status(self) -> CacheStatus:
        """Return what the last leader has written, once the API server answers."""
        while True:
            self._turned = monotonic()
            try:
                return await self.writer.read()
            except (ApiError, UnreachableError) as error:
                logs.warn("request failed", error=str(error))
                await asyncio.sleep(self._options.interval)

    # -- what tasks need ---------------------------------------------------------------------------------------------

    def datasets(self, tier: str) -> list[DatasetConfig]:
        """Return the datasets of a tier."""
        return self.configs.of_tier(tier)

    def pending(self) -> set[str]:
        """Return namespaces with pods that wait and mount a claim."""
        return self.pending_pods.namespaces()

    def flushes(self, tier: TierConfig) -> list[Flush]:
        """Return what is to be flushed of a tier."""
        found, now = [], self._client.clock.now()
        for key, (path, asked) in sorted(self.configs.flushes.items())[:_MAX_FLUSHES]:
            name, colon, inside = path.partition(":")
            if not colon:
                directory = (tier.fuse_directory or "").rstrip("/")
                if not directory or not f"{path}/".startswith(f"{directory}/"):
                    continue
                name, inside = tier.name, path.removeprefix(directory)
            # One whose command has died is forgotten.
            if name == tier.name and now - asked < _OLDEST_FLUSH:
                found.append(Flush(key.rpartition("/")[2], inside or "/"))
        return found

    def node_of(self, address: str) -> str:
        """Return the node of a worker's address."""
        return self.tier_pods.node_of(address)

    def guard(self, tier: str, write_back: WriteBackTask) -> DrainGuard:
        """Return the drain guard of a write tier."""
        return DrainGuard(
            self._client, self._options.namespace, tier, self.tier_pods, self.nodes, write_back, self._events
        )

    def fuse_mounts(self, tier: TierConfig, directory: str, facts: TierStatus) -> FuseMounts:
        """Return what follows the FUSE mounts of a tier."""
        return FuseMounts(
            self._client,
            tier.name,
            directory,
            self.tier_pods,
            self.volumes,
            self.nodes,
            self._events,
            facts,
        )

    async def tell_dataset(self, dataset: DatasetConfig, reason: str, note: str, warning: bool) -> None:
        """Write an event about a dataset's ConfigMap; one that fails is logged only."""
        name = f"{dataset.namespace}/{dataset.name}"
        for key, each in self.configs.datasets.items():
            if f"{each.namespace}/{each.name}" == name:
                await self._events.record(self.configs.references[key], reason, f"{name} {note}", warning=warning)
                return

    # -- runners -----------------------------------------------------------------------------------------------------

    async def _run_tiers(self) -> None:
        """Start a runner for each tier that is new, was changed or has ended; stop those of others."""
        wanted = {tier.name: tier for tier in self.configs.tiers.values()}
        ended = [name for name, task in self._running.items() if task.done()]
        for name in ended:
            logs.error("tier ended", name=name)
        await self._stop(ended)
        await self._stop([name for name, runner in self.runners.items() if wanted.get(name) != runner.tier])
        for name, tier in wanted.items():
            if name not in self.runners:
                self.runners[name] = TierRunner(tier, self, self._options.interval)
                self._running[name] = asyncio.ensure_future(self.runners[name].run())
                logs.info("tier", name=name, role=tier.role, masters=",".join(tier.masters))

    async def _stop(self, tiers: list[str]) -> None:
        for name in tiers:
            task = self._running.pop(name)
            del self.runners[name]
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # -- reports -----------------------------------------------------------------------------------------------------

    def status(self) -> CacheStatus:
        """Return the content of `status.json`."""
        datasets: dict[str, DatasetStatus] = {}
        flushes: dict[str, FlushStatus] = {}
        for runner in self.runners.values():
            datasets |= runner.prewarmer.entries
            if runner.write_back is not None:
                flushes |= runner.write_back.flushed
        return CacheStatus(
            datasets=keep_least_cached(datasets, MAX_STATUS_ENTRIES),
            tiers={name: runner.status() for name, runner in sorted(self.runners.items())},
            flushes=flushes,
            errors=dict(sorted(self.configs.errors.items())[:100]),
        )

    async def _report(self) -> None:
        await self.writer.write(self.status())
        for key in list(self.configs.unreported)[:100]:
            self.configs.unreported.discard(key)
            regarding, error = self.configs.references[key], self.configs.errors[key]
            await self._events.record(regarding, "InvalidConfiguration", error, warning=True)


async def run(access: ClusterAccess, options: CacheOptions) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    await run_elected(Client(access, CONTROLLER), lambda client: CacheDaemon(client, options))
