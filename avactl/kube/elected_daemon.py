"""The skeleton of daemons with several replicas, of which one works: leader election, watches, probes and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from prometheus_client import CollectorRegistry, Gauge

from avactl.kube import logs
from avactl.kube.client import Client
from avactl.kube.daemons import run_until_signal
from avactl.kube.http_server import serve
from avactl.kube.leader import Leader, LostLeaseError
from avactl.kube.reflector import Reflector
from avactl.kube.replica import new_identity


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Options that all daemons with leader election have."""

    namespace: str
    """Namespace of the Lease."""
    lease: str = ""
    """Name of the Lease; empty for a single replica without leader election."""
    listen: str = ""
    """HOST:PORT for probes and metrics; empty: none."""

    def leader(self, client: Client) -> Leader | None:
        """Return the leader election of a new replica; None without a Lease."""
        return Leader(client, self.namespace, self.lease, new_identity()) if self.lease else None


class ElectedDaemon:
    """One replica of a daemon. All replicas follow the API server; only the leader works."""

    registry: ClassVar[CollectorRegistry]
    leader_gauge: ClassVar[Gauge]
    """1 on the replica that works."""
    stuck_after_s: ClassVar[float]
    """Seconds after which a turn that does not end counts as stuck."""

    def __init__(self, listen: str, leader: Leader | None, reflectors: Sequence[Reflector] = ()) -> None:
        self._listen, self._leader, self._reflectors = listen, leader, [*reflectors]
        self._wake = asyncio.Event()
        """Set when something changed, so that the next turn begins at once."""
        self._turned = monotonic()
        """When the last turn began."""
        self.stop = asyncio.Event()
        """Set to end in order: a replica that stands by ends at once, one that works when its work returns."""

    # -- what a subclass gives -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Work, as the leader with synced watches. The replica ends when this returns."""
        raise NotImplementedError

    async def _prepare(self) -> None:
        """Prepare, with probes served already, before anything is watched."""

    def _on_synced(self) -> None:
        """Take note that all objects have been listed; called on replicas that stand by, too."""

    async def _clean_up(self) -> None:
        """Stop what `_work` has started, before the lease is released."""

    def _is_stuck(self) -> bool:
        """Return True if the work does not go on, so that this process must be restarted."""
        return monotonic() - self._turned >= self.stuck_after_s

    async def _update_metrics(self) -> None:
        """Update the gauges before they are read."""

    # -- running -------------------------------------------------------------------------------------------------------

    def leading(self) -> bool:
        """Return True if this replica may act."""
        return self._leader is None or self._leader.leading()

    async def run(self) -> None:
        """Run until cancelled or the work ends. Raises LostLeaseError, in an exception group, if the lease is lost."""
        async with self._serve_probes():
            await self._run_replica()

    @contextlib.asynccontextmanager
    async def _serve_probes(self) -> AsyncIterator[None]:
        if not self._listen:
            yield
            return
        server = await serve(self._listen, self._is_alive, self._is_ready, self._collect, self.registry)
        try:
            yield
        finally:
            await server.cleanup()

    async def _run_replica(self) -> None:
        try:
            await self._prepare()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._follow(reflector)) for reflector in self._reflectors]
                if self._leader is not None:
                    tasks.append(group.create_task(self._leader.run()))
                await self._lead()
                for task in tasks:
                    task.cancel()
        finally:
            try:
                await self._clean_up()
            finally:
                if self._leader is not None:
                    await asyncio.shield(self._leader.release())

    async def _follow(self, reflector: Reflector) -> None:
        if self._leader is not None:
            # If this replica wins the lease at once, the first list is still fresh.
            await self._leader.tried.wait()
        await reflector.run()

    async def _lead(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self._on_synced()
        if self._leader is not None:
            await wait_first(self._leader.won, self.stop)
        if self.stop.is_set():
            return
        self._turned = monotonic()
        await self._work()

    async def _repeat(self, turn: Callable[[], Awaitable[None]], interval: float, pause: float = 0.0) -> None:
        """Call `turn` while leading, every `interval` seconds and when woken, with at least `pause` in between.

        With a pause, a batch of changes is one turn.
        """
        while True:
            self._wake.clear()
            self._turned = monotonic()
            if self.leading():
                await turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._wake.wait()
            await asyncio.sleep(min(pause, interval))

    # -- probes and metrics --------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def _is_alive(self) -> bool:
        if not self._is_ready() or (self._leader is not None and not self._leader.won.is_set()):
            return True  # it waits for the API server, or stands by
        return not self._is_stuck()

    async def _collect(self) -> None:
        self.leader_gauge.set(self.leading())
        await self._update_metrics()


async def wait_first(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until one of the events is set, or the time is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def run_elected(client: Client, new_replica: Callable[[Client], ElectedDaemon]) -> None:
    """Run replicas until SIGTERM, SIGINT or the end of the work, a new one whenever the lease was lost.

    A replica that lost its lease may believe what is no longer true, so the next one starts without any state.
    """

    async def run() -> None:
        while True:
            async with client:
                try:
                    await new_replica(client).run()
                    return  # its work is done
                except* LostLeaseError as group:
                    logs.error("lease lost", error=str(group.exceptions[0]))

    await run_until_signal(run)
