"""The master's process: the store, the server and the copies of the state, until a signal."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from avactl.daemons.elastic.server import Server
from avactl.daemons.elastic.service import Service
from avactl.daemons.elastic.state.snapshot import StateSnapshotError, dump, load
from avactl.daemons.elastic.state.store import StateStore, StateStoreError
from avactl.daemons.elastic.status import Summary
from avactl.daemons.elastic.workers import StragglerDetector
from avactl.kube import logs
from avactl.kube.daemons import run_until_signal

if TYPE_CHECKING:
    from avactl.daemons.elastic.state.config_map import ConfigMapState
    from avactl.kube.access import ClusterAccess

_GC_THRESHOLDS = (50_000, 20, 100)
"""Thresholds of the garbage collector: requests make no cycles, and a thousand streams are much to traverse."""
_SYNC_INTERVAL_S = 1.0
"""Seconds between two calls of fdatasync."""
_COPY_INTERVAL_S = 3.0
"""Seconds between two writes of the ConfigMap."""
_PROGRESS_INTERVAL_S = 30.0
"""Seconds after which the progress is written in any case: readers see that the master lives."""
_RETRY_INTERVAL_S = 2.0
"""Seconds after which the API server is asked again."""
STUCK = 300.0
"""Seconds after which a loop that does not turn counts as stuck: more than all requests of a turn may take."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """Options of the command line."""

    listen: str
    state: Path
    config_map: tuple[str, str] | None = None
    """Namespace and name."""
    run: str = ""
    """Run of the job: what the ConfigMap has of another run is not used, or with `resume` where it is not finished."""
    resume: bool = False
    staleness: int | None = None
    """Bound of the clock, in steps."""
    gradients: int | None = None
    """Number of gradients of a step that count, the first ones."""
    workers: int = 1
    """Number of workers that the clock starts with."""
    stragglers: StragglerDetector | None = None
    """Which slow workers are replaced; None: none."""
    http: str = ""
    """HOST:PORT for probes and metrics; empty: none."""


class MasterDaemon:
    """One master."""

    def __init__(self, options: MasterOptions, access: ClusterAccess | None) -> None:
        self._options, self._access = options, access
        self._turned: dict[str, float] = {}
        """By loop, when its last turn began."""
        self._service: Service | None = None
        self._server: Server | None = None

    async def run(self) -> None:
        """Run until cancelled. Raises StoreError, ListenError of the servers, and LostError of the ConfigMap."""
        async with AsyncExitStack() as stack:
            if self._options.http:
                await self._serve_http(stack)
            await self._run(stack)

    async def _serve_http(self, stack: AsyncExitStack) -> None:
        from avactl.daemons.elastic.metrics import make_registry
        from avactl.kube.http_server import serve
        from avactl.kube.listen import ListenError

        try:
            runner = await serve(
                self._options.http, self._alive, self._ready, lambda: None, make_registry(lambda: self._service)
            )
        except ListenError as error:
            raise ListenError(f"`--http {self._options.http}`: {error}") from None
        stack.push_async_callback(runner.cleanup)

    def _alive(self) -> bool:
        """Return True if all loops turn, or the master asks for its ConfigMap again and again."""
        now = monotonic()
        ticked = now if self._server is None else self._server.ticked
        return all(now - each < STUCK for each in (ticked, *self._turned.values()))

    def _ready(self) -> bool:
        return self._server is not None

    async def _run(self, stack: AsyncExitStack) -> None:
        store = StateStore(self._options.state, monotonic())
        stack.callback(store.close)
        store.run = self._options.run
        if store.dropped:
            logs.warn("journal cut", bytes=store.dropped)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: Exception) -> None:
            if not failed.done():
                failed.set_exception(error)

        copy = await self._config_map(stack)
        settled = copy is None or not await self._adopt(store, copy)
        service = Service(
            store,
            monotonic(),
            settled,
            self._options.staleness,
            self._options.gradients,
            self._options.stragglers,
            self._options.workers,
        )
        if copy is not None and settled:
            service.durable = 0  # until the ConfigMap has it
        server = Server(service, fail)
        port = await server.start(self._options.listen)
        stack.push_async_callback(server.stop)
        self._service, self._server = service, server
        logs.info(
            "listening",
            port=port,
            state=str(self._options.state),
            new=store.new,
            sequence=store.sequence,
            datasets=len(store.job.datasets),
            workers=len(store.job.workers),
        )
        loops: list[Coroutine[Any, Any, None]] = [server.tick(), self._sync(service, copy is None)]
        if copy is not None:
            loops.append(self._copy(service, copy))
        tasks = [asyncio.create_task(each) for each in loops]
        try:
            await asyncio.wait([failed, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for each in (failed, *tasks):
                if each.done():
                    each.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _sync(self, service: Service, is_last: bool) -> None:
        """Flush the journal to the disk; `is_last`: what is on the disk is safe."""
        store = service.store
        while True:
            self._turned["sync"] = monotonic()
            await asyncio.sleep(_SYNC_INTERVAL_S)
            if store.synced < store.sequence:
                try:
                    await asyncio.to_thread(store.sync)
                except OSError as error:
                    raise StateStoreError(f"{store.path}: {(error.strerror or str(error)).lower()}") from None
            if is_last:
                service.durable = store.synced

    # -- ConfigMap ---------------------------------------------------------------------------------------------------

    async def _config_map(self, stack: AsyncExitStack) -> ConfigMapState | None:
        if self._options.config_map is None or self._access is None:
            return None
        from avactl.daemons.elastic.state.config_map import ConfigMapState
        from avactl.kube.client import Client

        client = await stack.enter_async_context(Client(self._access, "avactl-elastic", connections=2))
        return ConfigMapState(client, *self._options.config_map)

    async def _adopt(self, store: StateStore, copy: ConfigMapState) -> bool:
        """Take the state of the ConfigMap if it is newer than the file's; return True if so.

        Waits for the API server: with an old state, tasks would be repeated.
        """
        from avactl.kube.client import ApiError, UnreachableError

        while True:
            self._turned["adopt"] = monotonic()
            try:
                raw = await copy.read()
                del self._turned["adopt"]
                break
            except (ApiError, UnreachableError) as error:
                logs.warn("ConfigMap not read", error=str(error))
                await asyncio.sleep(_RETRY_INTERVAL_S)
        if raw is None:
            return False
        try:
            job, about = load(raw, monotonic())
            lineage, sequence = str(about["lineage"]), int(about["sequence"])
        except (StateSnapshotError, KeyError, TypeError, ValueError) as error:
            raise StateStoreError(f"the ConfigMap {'/'.join(self._options.config_map or ())}: {error}") from None
        if not store.new and (lineage != store.lineage or sequence <= store.sequence):
            return False
        if about.get("run", "") != self._options.run:
            # Workers of the other run have nothing more to say.
            resumed = self._options.resume and job.carry()
            if resumed:
                store.adopt(job, store.lineage, store.sequence)
            logs.info("state of another run", run=about.get("run", ""), resumed=resumed)
            return False
        store.adopt(job, lineage, sequence)
        logs.info("state taken from the ConfigMap", sequence=sequence)
        return True

    async def _copy(self, service: Service, copy: ConfigMapState) -> None:
        """Write the state and the progress to the ConfigMap from time to time."""
        from avactl.daemons.elastic.state.config_map import MOST
        from avactl.kube.client import ApiError, UnreachableError

        store, written, told = service.store, 0, float("-inf")
        summary = Summary(self._options.run)
        while True:
            self._turned["copy"] = monotonic()
            await asyncio.sleep(_COPY_INTERVAL_S)
            sequence, now = store.sequence, monotonic()
            summary.observe(store.job, now)
            if sequence == written and now - told < _PROGRESS_INTERVAL_S:
                continue
            state = dump(store.job, store.about(), full=False) if sequence != written else None
            if state is not None and len(state) > MOST:
                logs.warn("state too large for the ConfigMap", bytes=len(state), most=MOST)
                state = None
            try:
                await copy.write(state, summary.text(store.job))
            except (ApiError, UnreachableError) as error:
                logs.warn("ConfigMap not written", error=str(error))
                continue
            told = now
            if state is not None:
                service.durable = written = sequence


async def run(options: MasterOptions, access: ClusterAccess | None = None) -> None:
    """Run a master until SIGTERM or SIGINT. Raises StoreError, ListenError and LostError."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    await run_until_signal(MasterDaemon(options, access).run)
