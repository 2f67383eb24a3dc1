"""Prewarming: load versions of datasets once, on a schedule, or when a job waits for them; report how warm they are.

All state that must outlive the process is in the status ConfigMap and in the cache itself: a new leader lists what is
cached and loads the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from avactl.base.cron import fires_between
from avactl.base.quantity import format_quantity
from avactl.base.terminal import count_text, shorten_middle, visible_text
from avactl.contracts.cache import MAX_CLAIMS, MAX_HOLDERS, DatasetConfig, DatasetStatus, DatasetVersionConfig
from avactl.daemons.cache import metrics
from avactl.daemons.cache.engine import CachedFile, CacheEngine, EngineError, NotFoundError
from avactl.daemons.cache.loading import Load, Pacer
from avactl.daemons.cache.status import MAX_TEXT
from avactl.kube.timestamps import MAX_CLOCK_SKEW_S

RUNNING = 4
"""Versions of one tier that are loaded at once."""
MEASURE = 60.0
"""Seconds between two looks at how much of a version is cached."""
RETRY = 5.0
"""Seconds until a load is tried again that could not load everything."""
_SETTLE, _LOOKS = 0.5, 6
"""Seconds between looks at the result of a load, and their number: masters hear of blocks with a delay."""

Tell = Callable[[DatasetConfig, str, str, bool], Awaitable[None]]


class _Missing(NamedTuple):
    """Blocks of a version that no worker holds, and a file that has one."""

    blocks: int = 0
    file: CachedFile | None = None


class Prewarmer:
    """The datasets of one tier. `entries` is their part of the status, by `NAMESPACE/NAME/VERSION`."""

    def __init__(
        self,
        engine: CacheEngine,
        datasets: Callable[[], Iterable[DatasetConfig]],
        pending: Callable[[], set[str]],
        node_of: Callable[[str], str],
        tell: Tell,
        known: Mapping[str, DatasetStatus],
    ) -> None:
        """`pending` returns namespaces with pods that wait, `node_of` the node with an address, `known` the entries
        that the last leader wrote.
        """
        self._engine, self._datasets, self._pending = engine, datasets, pending
        self._node_of, self._tell, self._known = node_of, tell, known
        self.entries: dict[str, DatasetStatus] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._measured: dict[str, float] = {}
        self._retry: dict[str, float] = {}

    async def tick(self) -> None:
        """Start what is due, and look at what was not looked at for a while."""
        wanted = {
            f"{dataset.namespace}/{dataset.name}/{version.name}": (dataset, version)
            for dataset in self._datasets()
            for version in dataset.versions
        }
        for key in [key for key in self.entries if key not in wanted]:
            if key in self._loads:
                self._loads.pop(key).cancel()
            del self.entries[key]
        for key, (dataset, version) in wanted.items():
            entry = self.entries.get(key)
            if entry is None or entry.path != version.path:
                entry = self._known.get(key)
                if entry is None or entry.path != version.path:
                    entry = DatasetStatus(path=version.path, percent=0.0, since=int(time.time()))
                self.entries[key] = entry
            # Namespaces whose pods may wait for it (`startWhen`).
            entry.claims = tuple(sorted(version.claims)[:MAX_CLAIMS])
            if key in self._loads and self._loads[key].done():
                del self._loads[key]
            if key in self._loads:
                continue
            if len(self._loads) < RUNNING and self._is_due(key, dataset, version, entry):
                entry.loading = True
                self._loads[key] = asyncio.ensure_future(self._load(key, dataset, version, entry))
            elif time.monotonic() - self._measured.get(key, float("-inf")) > MEASURE:
                await self._run_guarded(key, entry, self._measure(key, version, entry))

    async def close(self) -> None:
        """Stop all loads."""
        for task in self._loads.values():
            task.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)

    def _is_due(self, key: str, dataset: DatasetConfig, version: DatasetVersionConfig, entry: DatasetStatus) -> bool:
        if (
            dataset.prewarm is None
            or not dataset.prewarm.loads(version.name)
            or time.monotonic() < self._retry.get(key, 0.0)
        ):
            return False
        if entry.loading:
            return True  # the last leader ended before its load did
        when = dataset.prewarm.when
        if when == "once":
            return not entry.warmed
        if when == "admitted":
            return entry.percent < 100 and not self._pending().isdisjoint(version.claims)
        now = int(time.time())
        if now < entry.since <= now + MAX_CLOCK_SKEW_S:
            return False  # the last leader's clock was ahead, and it has started what is due until then
        since, entry.since = entry.since, now
        return fires_between(when, since, now)

    async def _load(
        self, key: str, dataset: DatasetConfig, version: DatasetVersionConfig, entry: DatasetStatus
    ) -> None:
        await self._run_guarded(key, entry, self._start_load(key, dataset, version, entry))

    async def _run_guarded(self, key: str, entry: DatasetStatus, action: Awaitable[object]) -> None:
        """Turn the failure of one version into its own error."""
        try:
            await action
        except* EngineError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            said = f"{entry.path} is not in the under-store" if isinstance(error, NotFoundError) else str(error)
            entry.error = visible_text(shorten_middle(said, MAX_TEXT))
            self._retry[key] = time.monotonic() + RETRY
            self._measured[key] = time.monotonic()

    async def _start_load(
        self, key: str, dataset: DatasetConfig, version: DatasetVersionConfig, entry: DatasetStatus
    ) -> None:
        assert dataset.prewarm is not None
        began = time.monotonic()
        await self._measure(key, version, entry)
        if not entry.total_files:
            # The masters do not know of objects that came after their last look.
            await self._measure(key, version, entry, refresh=True)
        before = entry.bytes

        def progress(size: int) -> None:
            seconds = max(0.001, time.monotonic() - began)
            rate = load.loaded / seconds
            entry.bytes = min(entry.total_bytes, before + load.loaded)
            entry.percent = _format_percent(entry.bytes, entry.total_bytes)
            entry.rate = int(rate)
            entry.eta_seconds = int((entry.total_bytes - entry.bytes) / rate) if rate else None
            entry.updated = int(time.time())
            metrics.PREWARMED.labels(dataset.tier, *key.split("/")).inc(size)

        load = Load(self._engine, Pacer(dataset.prewarm.throttle or 0), progress)
        await load.run(self._engine.files(version.path))
        missing = _Missing()
        for _ in range(_LOOKS):
            missing = await self._measure(key, version, entry)
            if entry.percent >= 100:
                break
            await asyncio.sleep(_SETTLE)
        entry.rate, entry.eta_seconds = 0, None
        if entry.percent < 100:
            said = await self._explain_failure(load, missing)
            first = not entry.error
            entry.error = visible_text(shorten_middle(said, MAX_TEXT))
            self._retry[key] = time.monotonic() + RETRY
            if first:
                await self._tell(dataset, "PrewarmIncomplete", f"version {version.name}: {entry.error}", True)
            return
        if dataset.prewarm.pin:
            await self._engine.pin(version.path, True, recursive=True)
        entry.error = ""
        entry.loading = False
        entry.warmed = int(time.time())
        seconds = time.monotonic() - began
        size = f"{count_text(entry.total_files, 'file')}, {format_quantity(entry.total_bytes)} bytes"
        await self._tell(dataset, "Prewarmed", f"version {version.name}: {size} cached after {seconds:.0f} s", False)

    async def _explain_failure(self, load: Load, missing: _Missing) -> str:
        """Return why blocks are not cached. Workers do not tell whether they could read one."""
        if load.failures:
            return f"{count_text(load.failed, 'block')} failed: {load.failures[0]}"
        file = missing.file
        if file is None:
            return "evicted meanwhile"
        try:
            async for _ in self._engine.read_store(file.store_path, file.mount, file.size):
                break
        except EngineError as error:
            return f"{count_text(missing.blocks, 'block')} failed: {file.path}: {error}"
        return f"{count_text(missing.blocks, 'block')} evicted meanwhile"

    async def _measure(
        self, key: str, version: DatasetVersionConfig, entry: DatasetStatus, refresh: bool = False
    ) -> _Missing:
        """Note what is cached; return what is not."""
        size = files = total_size = total_files = 0
        missing = _Missing()
        held: dict[str, int] = {}
        async for file in self._engine.files(version.path, refresh):
            total_size += file.size
            total_files += 1
            files += file.cached >= 100
            for block in file.blocks:
                if block.holders:
                    size += block.size
                else:
                    missing = _Missing(missing.blocks + 1, missing.file or file)
                for holder in block.holders:
                    held[holder] = held.get(holder, 0) + block.size
        self._measured[key] = time.monotonic()
        largest = sorted(held.items(), key=lambda each: -each[1])[:MAX_HOLDERS]
        entry.bytes, entry.total_bytes, entry.files, entry.total_files = size, total_size, files, total_files
        entry.percent = 100.0 if total_files and files == total_files else _format_percent(size, total_size)
        # Blocks of a file that is being written count already, and its length does not.
        shares = ((address, min(1.0, round(part / total_size, 4))) for address, part in largest if total_size)
        entry.holders = {self._node_of(address): share for address, share in shares}
        entry.updated = int(time.time())
        if not entry.loading:
            entry.error = ""
        metrics.WARM.labels(*key.split("/")).set(entry.percent / 100)
        return missing


def _format_percent(part: int, whole: int) -> float:
    """Percent with one digit; 100 only for all of it."""
    return min(99.9, round(100 * part / whole, 1)) if whole and part < whole else 100.0 if whole else 0.0
