"""Loading of files into the cache: in parallel on all workers, with a common limit on the rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic

from avactl.daemons.cache.engine import CachedBlock, CachedFile, CacheEngine, CacheWorker, EngineError, UnavailableError

STREAMS = 16
"""Blocks that one worker loads at the same time: each takes 8 MiB of its heap at most."""
_MAX_QUEUED_PARTS = 512
"""Blocks that wait for one worker: the list is read as fast as they are loaded."""
_MAX_FAILURES = 100

Part = tuple[CachedFile, CachedBlock]


class Pacer:
    """A limit of bytes a second, common to all that `take`; 0 for none."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._due = monotonic()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may be read."""
        if self.rate:
            now = monotonic()
            start = max(self._due, now)
            self._due = start + size / self.rate
            await asyncio.sleep(start - now)


class Load:
    """One pass over a directory. `failures` are messages, at most 100; `loaded` counts bytes."""

    def __init__(self, engine: CacheEngine, pacer: Pacer, progress: Callable[[int], None]) -> None:
        self._engine, self._pacer, self._progress = engine, pacer, progress
        self.failed, self.loaded = 0, 0
        self.failures: list[str] = []

    async def run(self, files: AsyncIterator[CachedFile]) -> None:
        """Load the blocks that no worker holds. Raises EngineError if the list fails or there is no worker."""
        workers = await self._engine.workers()
        if not workers:
            raise UnavailableError("no worker is registered")
        queues: list[asyncio.Queue[Part | None]] = [asyncio.Queue(_MAX_QUEUED_PARTS) for _ in workers]
        async with asyncio.TaskGroup() as group:
            for worker, queue in zip(workers, queues, strict=True):
                for _ in range(STREAMS):
                    group.create_task(self._feed(worker, queue))
            count = 0
            try:
                async for file in files:
                    if not file.complete or file.cached >= 100:
                        continue
                    for block in file.blocks:
                        if not block.holders:
                            # In turn: ids of blocks follow a pattern by file, and would not spread them evenly.
                            await queues[count % len(queues)].put((file, block))
                            count += 1
            finally:
                for queue in queues:
                    for _ in range(STREAMS):
                        await queue.put(None)

    async def _feed(self, worker: CacheWorker, queue: asyncio.Queue[Part | None]) -> None:
        while (part := await queue.get()) is not None:
            file, block = part
            await self._pacer.take(block.size)
            try:
                await self._engine.load(worker, file, block)
            except EngineError as error:
                self.failed += 1
                if len(self.failures) < _MAX_FAILURES:
                    self.failures.append(f"{file.path}: {error}")
                continue
            self.loaded += block.size
            self._progress(block.size)
