"""The master's process: the store, the server and the probes, until a signal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from avactl.elastic.server import Server
from avactl.elastic.service import Service
from avactl.elastic.store import Store, StoreError
from avactl.kube import logs
from avactl.kube.daemons import run_until_signal

_SYNC = 1.0
"""Seconds between two calls of fdatasync."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    listen: str
    state: Path


class Daemon:
    """One master."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def run(self) -> None:
        """Run until cancelled. Raises StoreError, and ListenError of the server."""
        store = Store(self._options.state, monotonic())
        if store.dropped:
            logs.warn("journal cut", bytes=store.dropped)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: Exception) -> None:
            if not failed.done():
                failed.set_exception(error)

        service = Service(store, monotonic())
        server = Server(service, fail)
        tasks = []
        try:
            port = await server.start(self._options.listen)
            logs.info(
                "listening", port=port, state=str(self._options.state), new=store.new, sequence=store.sequence,
                datasets=len(store.job.datasets), workers=len(store.job.workers),
            )  # fmt: skip
            tasks = [asyncio.create_task(each) for each in (server.tick(), self._sync(service))]
            await asyncio.wait([failed, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for each in (failed, *tasks):
                if each.done():
                    each.result()
        finally:
            for task in tasks:
                task.cancel()
            await server.stop()
            store.close()

    async def _sync(self, service: Service) -> None:
        store = service.store
        while True:
            await asyncio.sleep(_SYNC)
            if store.synced < store.sequence:
                try:
                    await asyncio.to_thread(store.sync)
                except OSError as error:
                    raise StoreError(f"{store.path}: {(error.strerror or str(error)).lower()}") from None
            service.durable = store.synced


async def run(options: Options) -> None:
    """Run a master until SIGTERM or SIGINT. Raises StoreError and ListenError."""
    await run_until_signal(Daemon(options).run)
