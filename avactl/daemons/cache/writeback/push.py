"""Write-back: push the oldest dirty files to the object store, verify them there, and have clean ones released.

A file is *dirty* until the object store is verified to have it: read back, with the same size and SHA-256. After an
upload that failed or was interrupted, it is read back no earlier than `settle` seconds later (`settling`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.cache import FlushStatus, TierConfig, TierStatus, WriteBackConfig
from avactl.daemons.cache import metrics
from avactl.daemons.cache.engine import CachedFile, CacheEngine, EngineError, Mount, NotFoundError, UnavailableError
from avactl.daemons.cache.writeback import release
from avactl.daemons.cache.writeback.settling import Settling
from avactl.kube import logs

PARALLEL = 16
"""Files that are pushed at once: most of them wait for the engine or the store."""
PERSIST = 120.0
"""Seconds for the engine to persist a file."""
ASK = 10.0
"""Seconds until it is asked again: it loses requests when a process dies, and waits longer after each failure."""
BACKOFF = (1.0, 60.0)
"""Seconds until a failed push is tried again: first, and at most."""
_TRASH_REFRESH = 60.0
"""Seconds between two looks into the under-store for durable copies that were moved and are not known to the engine."""
_POLL_INTERVAL_S = 0.2


class VerifyError(EngineError):
    """The object store does not have the file's content."""


class Flush(NamedTuple):
    """A request that all files below a path are pushed now."""

    name: str
    path: str


class Hosts(NamedTuple):
    """Hosts of workers, as their pods tell: engines know of a lost worker minutes later."""

    staying: frozenset[str]
    leaving: frozenset[str]
    """Of cordoned nodes."""


class Dirty(NamedTuple):
    """A file that the object store is not verified to have."""

    file: CachedFile
    source: str
    """Mount it was written to."""
    target: str
    """Mount of the object store it goes to."""


class WriteBackTask:
    """Writes back the data of one tier."""

    def __init__(
        self,
        engine: CacheEngine,
        tier: TierConfig,
        settings: WriteBackConfig,
        facts: TierStatus,
        flushes: Callable[[], Iterable[Flush]],
        leading: Callable[[], bool],
    ) -> None:
        """`facts` is the tier's part of the status, with the capacity."""
        self._engine, self._tier, self._settings, self._facts = engine, tier, settings, facts
        self._flushes, self._leading = flushes, leading
        self.flushed: dict[str, FlushStatus] = {}
        """Progress of flushes by name."""
        self.hosts: Callable[[], Hosts] = lambda: Hosts(frozenset(), frozenset())
        self.judged = self.hosts()
        """Hosts as of the last look."""
        self.alone: dict[str, int] = {}
        """Bytes in no store and on no other worker that stays, by the worker's address."""
        self._pushes: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """Failed attempts in a row, and when the next is due, by path."""
        self._settling = Settling(settings.settle_seconds)
        self._pushing = False
        self._mounts: dict[str, Mount] = {}
        self._refreshed: dict[str, float] = {}
        """When the trash of a mount was last refreshed."""

    async def tick(self) -> None:
        """Look at all files; begin pushes that are due. Raises EngineError."""
        flushes, hosts = list(self._flushes()), self.hosts()
        self._mounts = {mount.path: mount for mount in await self._engine.mounts()}
        dirty: list[Dirty] = []
        unpinned: list[Dirty] = []
        clean: list[tuple[CachedFile, str, str]] = []
        for source, target in self._tier.push_targets.items():
            if source != target:
                with self._report_failures():
                    await self._resume_deletes(source)
            async for file in self._engine.files(source):
                if not file.complete or f"/{release.TRASH}/" in file.path:
                    continue
                if release.is_clean(file):
                    if file.pinned or (self._settings.evicts and source != target):
                        clean.append((file, source, target))
                    continue
                if source == target and file.persisted and not file.pinned:
                    continue  # read from the store, or written through: its writer waited for the store's answer
                dirty.append(Dirty(file, source, target))
                if source == target and not file.pinned:
                    unpinned.append(dirty[-1])
        # Before anything is persisted: the engine evicts what is persisted and not pinned.
        for each in unpinned:
            with self._report_failures(), suppress(NotFoundError):  # its writer has deleted or renamed it
                await self._engine.pin(each.file.path, True)
        self._settling.forget({each.file.path for each in dirty})
        self._measure(dirty, hosts)
        self._report(flushes, dirty)
        # What was verified by a daemon that died before it went on.
        for file, source, target in clean:
            if file.path not in self._pushes:
                with self._report_failures(), suppress(NotFoundError):
                    await self._let_go(file, source, target, self._is_under_pressure())
        self._start(self._due_files(dirty, flushes))

    async def close(self) -> None:
        """Stop all pushes."""
        for task in self._pushes.values():
            task.cancel()
        await asyncio.gather(*self._pushes.values(), return_exceptions=True)

    async def _resume_deletes(self, source: str) -> None:
        now = time.monotonic()
        refresh = now >= self._refreshed.get(source, -_TRASH_REFRESH) + _TRASH_REFRESH
        await release.resume_deletes(self._engine, source, self._settings.evicts, refresh)
        if refresh:
            self._refreshed[source] = now

    @contextmanager
    def _report_failures(self) -> Iterator[None]:
        """Make the failure of one file an error of the tier: it must not hold up the others."""
        try:
            yield
        except UnavailableError:
            raise  # it would be the same with the others
        except EngineError as error:
            self._facts.push_error = visible_text(shorten_middle(str(error), 300))

    # -- what is due -------------------------------------------------------------------------------------------------

    def _measure(self, dirty: list[Dirty], hosts: Hosts) -> None:
        size = sum(each.file.size for each in dirty)
        oldest = max((time.time() - each.file.created for each in dirty), default=0.0)
        capacity = self._capacity_bytes()
        share = size / capacity if capacity else 0.0
        # Hysteresis: from the high mark on until the low one.
        self._pushing = share >= self._settings.push.high or (self._pushing and share > self._settings.push.low)
        alone: dict[str, int] = {}
        lost = 0
        for file in (each.file for each in dirty if not each.file.persisted):
            for block in file.blocks:
                for holder in block.holders:
                    if not any(other != holder and _host_of(other) in hosts.staying for other in block.holders):
                        alone[holder] = alone.get(holder, 0) + block.size
            lost += any(not block.holders for block in file.blocks)
        self.alone, self.judged = alone, hosts
        facts = self._facts
        facts.dirty_bytes = size
        facts.dirty_files = len(dirty)
        facts.oldest_dirty_seconds = max(0, int(oldest))
        facts.pushing = self._pushing
        facts.unreachable_files = lost
        facts.settling_files = len(self._settling)
        name = self._tier.name
        metrics.DIRTY.labels(name).set(size)
        metrics.DIRTY_FILES.labels(name).set(len(dirty))
        metrics.OLDEST.labels(name).set(max(0.0, oldest))

    def _capacity_bytes(self) -> int:
        """Return the bytes that `high` and `low` are shares of."""
        return self._settings.capacity or self._facts.capacity_bytes

    def _is_under_pressure(self) -> bool:
        return self._pushing or self._facts.fill >= self._settings.push.high

    def _report(self, flushes: list[Flush], dirty: list[Dirty]) -> None:
        self.flushed = {}
        for flush in flushes:
            below = [each.file.size for each in dirty if _is_below(each.file.path, flush.path)]
            self.flushed[flush.name] = FlushStatus(dirty_files=len(below), dirty_bytes=sum(below))

    def _due_files(self, dirty: list[Dirty], flushes: list[Flush]) -> list[Dirty]:
        """Return what is to be pushed, oldest first."""
        now, capacity = time.time(), self._capacity_bytes()
        rest = sum(each.file.size for each in dirty)
        due = []
        for each in sorted(dirty, key=lambda each: (each.file.created, each.file.path)):
            file = each.file
            # A file that is not written yet was written by a clock that is ahead: how long ago is not known.
            wanted = not 0 <= now - file.created < self._settings.push.delay_seconds or (
                self._pushing and rest > self._settings.push.low * capacity
            )
            # What only workers of a drained node hold is what the drain waits for.
            wanted = wanted or (
                not file.persisted
                and any(held & self.judged.leaving and not held & self.judged.staying for held in _block_hosts(file))
            )
            if wanted or any(_is_below(file.path, flush.path) for flush in flushes):
                due.append(each)
                rest -= file.size
        return due

    # -- pushing -----------------------------------------------------------------------------------------------------

    def _start(self, due: list[Dirty]) -> None:
        for path in [path for path, task in self._pushes.items() if task.done()]:
            del self._pushes[path]
        paths = {each.file.path for each in due}
        self._failures = {path: value for path, value in self._failures.items() if path in paths}
        for each in due:
            if len(self._pushes) >= PARALLEL:
                return
            path = each.file.path
            if path in self._pushes or self._settling.waits(each.file):
                continue
            if self._failures.get(path, (0, 0.0))[1] <= time.monotonic():
                self._pushes[path] = asyncio.ensure_future(self._push_file(each))

    async def _push_file(self, each: Dirty) -> None:
        path = each.file.path
        try:
            verified = await self._push(each)
            self._failures.pop(path, None)
            self._facts.push_error = ""
            if not verified:
                return
            metrics.PUSHES.labels(self._tier.name, "verified").inc()
            metrics.PUSHED.labels(self._tier.name).inc(each.file.size)
        except NotFoundError:
            self._settling.suspect(path)  # deleted or renamed meanwhile: another file can get the path
        except Exception as error:  # a defect that one file shows must not stop the others
            count = self._failures.get(path, (0, 0.0))[0] + 1
            self._settling.suspect(path)
            wait = min(BACKOFF[0] * 2.0 ** min(count - 1, 10), BACKOFF[1])
            self._failures[path] = (count, time.monotonic() + wait)
            result = "mismatch" if isinstance(error, VerifyError) else "failed"
            metrics.PUSHES.labels(self._tier.name, result).inc()
            logs.warn("push failed", tier=self._tier.name, path=path, attempt=count, error=repr(error)[:300])
            self._facts.push_error = visible_text(shorten_middle(str(error), 300))

    async def _push(self, each: Dirty) -> bool:
        """Upload a file, verify it, and release it; return False if there is nothing to release yet."""
        target = self._mounts[each.target]
        # The list that it is from may be older than the push before: what that has released must not be pushed again,
        # as a push that fails deletes the object.
        file = await self._engine.status(each.file.path)
        if release.is_clean(file) or not file.complete:
            return False
        url = file.store_path
        if each.source != each.target:
            url = target.url.rstrip("/") + file.path[len(each.source.rstrip("/")) :]
        checksum = self._settling.uploaded(file)
        if checksum is None and (mark := release.mark_of(file)) is not None:
            checksum = mark.checksum  # by an older daemon, which did not note the path, or before a rename
        if checksum is None or not await self._copy_agrees(file, url, target, checksum):
            checksum = await self._upload(file, url, target, persist=each.source == each.target)
        if not self._settling.settled(file, checksum):
            return False
        now = await self._engine.status(file.path)
        if (now.id, now.size) != (file.id, file.size):
            return False  # written anew: dirty again
        if not self._leading():
            return False
        await self._engine.mark(file.path, release.Mark.of(file, checksum).encode())
        if each.source != each.target:
            # The engine learns of the object now and not at its next look.
            await self._engine.status(each.target.rstrip("/") + file.path[len(each.source.rstrip("/")) :], refresh=True)
        await self._let_go(now, each.source, each.target, self._is_under_pressure())
        return True

    async def _upload(self, file: CachedFile, url: str, target: Mount, persist: bool) -> str:
        """Write a file to the store and verify it there; return its SHA-256."""
        if file.mark == release.BEGUN:
            self._settling.found(file.path)
        else:
            await self._engine.mark(file.path, release.BEGUN)
        if persist:
            checksum = await self._persist(file)
        else:
            digest = hashlib.sha256()
            await self._engine.write_store(url, target.id, _hash_chunks(self._engine.read(file), digest))
            checksum = digest.hexdigest()
        await self._verify(file, url, target, checksum)
        return checksum

    async def _persist(self, file: CachedFile) -> str:
        """Have the engine persist a file; return the checksum of the cached copy."""
        if not file.pinned:
            await self._engine.pin(file.path, True)
        checksum = await _compute_checksum(self._engine.read(file))
        if not file.persisted:
            begun = asked = time.monotonic()
            await self._engine.persist(file.path)
            while not (now := await self._engine.status(file.path)).persisted:
                if now.id != file.id:
                    raise NotFoundError(f"{file.path} was written anew")
                if time.monotonic() > begun + PERSIST:
                    raise EngineError(f"{file.path} was not persisted in {PERSIST:g} s")
                if time.monotonic() > asked + ASK:
                    asked = time.monotonic()
                    self._settling.suspect(file.path)  # the one before may be lost, or late
                    await self._engine.persist(file.path)
                await asyncio.sleep(_POLL_INTERVAL_S)
        return checksum

    async def _verify(self, file: CachedFile, url: str, target: Mount, checksum: str) -> None:
        """Compare the object with the file. Raises VerifyError, after an attempt to write the object anew."""
        if await self._copy_agrees(file, url, target, checksum):
            return
        await self._engine.write_store(url, target.id, self._engine.read(file))
        if not await self._copy_agrees(file, url, target, checksum):
            raise VerifyError(f"{url} differs from {file.path}")

    async def _copy_agrees(self, file: CachedFile, url: str, target: Mount, checksum: str) -> bool:
        digest, size = hashlib.sha256(), 0
        try:
            async for chunk in self._engine.read_store(url, target.id, file.size):
                digest.update(chunk)
                size += len(chunk)
        except NotFoundError:
            return False  # the late end of an upload that failed has deleted the object
        return size == file.size and digest.hexdigest() == checksum

    async def _let_go(self, file: CachedFile, source: str, target: str, pressed: bool) -> None:
        """Release a verified file: unpin it; free it if space is short; delete the durable copy if that is wanted."""
        if not self._leading():
            return
        if source != target and self._settings.evicts:
            await release.delete_durable(self._engine, file.path, source)
        elif pressed:
            await release.free(self._engine, file.path)
        else:
            await release.unpin(self._engine, file.path)


async def _compute_checksum(chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


async def _hash_chunks(chunks: AsyncIterator[bytes], digest: Any) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _block_hosts(file: CachedFile) -> list[set[str]]:
    """Return the hosts that hold each block of a file."""
    return [{_host_of(address) for address in block.holders} for block in file.blocks]
