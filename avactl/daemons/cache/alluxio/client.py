"""A tier of Alluxio 2.9.4 as an `CacheEngine`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from avactl.base.terminal import shorten_middle
from avactl.daemons.cache.alluxio.messages import MESSAGES
from avactl.daemons.cache.alluxio.rpc import TIMEOUT, Channel
from avactl.daemons.cache.engine import (
    CachedBlock,
    CachedFile,
    CacheWorker,
    EngineError,
    Mount,
    Reads,
    UnavailableError,
)

MARK = "avactl.dev/verified"
"""The daemon's extended attribute."""
_FILES, _BLOCKS, _WORKER = "file.FileSystemMasterClientService", "block.BlockMasterClientService", "block.BlockWorker"
_METRICS_SERVICE = "metric.MetricsMasterClientService"
_READ_METRICS = ("Local", "Domain", "Direct", "Remote")
"""Metrics `Cluster.BytesRead…` of what clients read: by short circuit, socket, from memory, and by the network. Source:
`MetricKey.java`."""
_NEVER, _ONCE, _ALWAYS = 0, 1, 2  # LoadMetadataPType
_UFS_FILE = 1  # RequestType
_CACHE_THROUGH = 3  # WritePType
_TRUNCATE = 1  # XAttrUpdateStrategy
_NO_EXPIRY, _FREE = -1, 1  # ttl, TtlAction
_LIST_TIMEOUT_S = 600.0
"""Seconds for a list of files: millions come in one stream."""
_LOAD_TIMEOUT_S = 600.0
"""Seconds for the load of a block."""
_TRANSFER_TIMEOUT_S = 3600.0
"""Seconds for the transfer of one file."""
_CHUNK_BYTES = 1024 * 1024
_WINDOW_BYTES = 2 * _CHUNK_BYTES
"""Bytes between two receipts: a worker stops when it has about 4 MB that were not confirmed."""
_ID_RANGE = 1 << 62

T = TypeVar("T")


class AlluxioEngine:
    """See `CacheEngine`. `masters` are the addresses of its masters, `HOST:PORT`."""

    def __init__(self, masters: Sequence[str]) -> None:
        self._masters = [Channel(address) for address in masters]
        self._primary = 0
        self._workers: dict[str, Channel] = {}

    async def close(self) -> None:
        for channel in (*self._masters, *self._workers.values()):
            await channel.close()
        self._workers.clear()

    # -- namespace -------------------------------------------------------------------------------------------------

    async def files(self, path: str, refresh: bool = False) -> AsyncIterator[CachedFile]:
        options = MESSAGES["ListStatusOptions"](
            recursive=True, loadMetadataType=_ALWAYS if refresh else _ONCE, commonOptions=_common_options(refresh)
        )
        request = MESSAGES["ListStatusRequest"](path=path, options=options)
        channel = await self._master()
        async for batch in channel.stream(_FILES, "ListStatus", request, "ListStatusResponse", _LIST_TIMEOUT_S):
            for info in batch.fileInfos:
                if not info.folder:
                    yield _make_file(info)

    async def status(self, path: str, refresh: bool = False) -> CachedFile:
        options = MESSAGES["GetStatusOptions"](
            loadMetadataType=_ONCE, updateTimestamps=False, commonOptions=_common_options(refresh)
        )
        request = MESSAGES["GetStatusRequest"](path=path, options=options)
        answer = await self._call(_FILES, "GetStatus", request, "GetStatusResponse")
        return _make_file(answer.fileInfo)

    async def mounts(self) -> list[Mount]:
        request = MESSAGES["GetMountTableRequest"](checkUfs=False)
        answer = await self._call(_FILES, "GetMountTable", request, "GetMountTableResponse")
        return [Mount(each.key, each.value.mountId, each.value.ufsUri) for each in answer.mountPoints]

    async def pin(self, path: str, pinned: bool, recursive: bool = False) -> None:
        await self._set(path, pinned=pinned, recursive=recursive)

    async def mark(self, path: str, value: bytes) -> None:
        attribute = MESSAGES["Attribute"](key=MARK, value=value)
        await self._set(path, xattr=[attribute], xattrUpdateStrategy=_TRUNCATE)

    async def persist(self, path: str) -> None:
        options = MESSAGES["ScheduleAsyncPersistenceOptions"](persistenceWaitTime=0)
        request = MESSAGES["ScheduleAsyncPersistenceRequest"](path=path, options=options)
        await self._call(_FILES, "ScheduleAsyncPersistence", request, "Empty")

    async def free(self, path: str, recursive: bool = False) -> None:
        options = MESSAGES["FreeOptions"](recursive=recursive, forced=False)
        await self._call(_FILES, "Free", MESSAGES["FreeRequest"](path=path, options=options), "Empty")

    async def delete(self, path: str) -> None:
        options = MESSAGES["DeleteOptions"](recursive=False, alluxioOnly=False)
        await self._call(_FILES, "Remove", MESSAGES["DeleteRequest"](path=path, options=options), "Empty")

    async def rename(self, path: str, to: str) -> None:
        await self._call(_FILES, "Rename", MESSAGES["RenameRequest"](path=path, dstPath=to), "Empty")

    async def make_directory(self, path: str) -> None:
        options = MESSAGES["CreateDirectoryOptions"](
            recursive=True, allowExists=True, writeType=_CACHE_THROUGH, commonOptions=_common_options()
        )
        request = MESSAGES["CreateDirectoryRequest"](path=path, options=options)
        await self._call(_FILES, "CreateDirectory", request, "Empty")

    async def _set(self, path: str, **options: Any) -> None:
        request = MESSAGES["SetAttributeRequest"](path=path, options=MESSAGES["SetAttributeOptions"](**options))
        await self._call(_FILES, "SetAttribute", request, "Empty")

    # -- workers ---------------------------------------------------------------------------------------------------

    async def workers(self) -> list[CacheWorker]:
        answer = await self._call(_BLOCKS, "GetWorkerInfoList", MESSAGES["Empty"](), "GetWorkerInfoListResponse")
        return sorted(
            CacheWorker(_format_address(each.address), each.address.host, each.capacityBytes, each.usedBytes)
            for each in answer.workerInfos
        )

    async def reads(self) -> Reads:
        answer = await self._call(_METRICS_SERVICE, "GetMetrics", MESSAGES["Empty"](), "GetMetricsResponse")
        found = {each.key: each.value.doubleValue for each in answer.metrics}
        asked = sum(found.get(f"Cluster.BytesRead{name}", 0.0) for name in _READ_METRICS)
        return Reads(int(asked), int(found.get("Cluster.BytesReadUfsAll", 0.0)))

    async def load(self, worker: CacheWorker, file: CachedFile, block: CachedBlock) -> None:
        # Not by `Load`, which `alluxio fs load` uses: it reads whole blocks into buffers outside the heap that the
        # worker never frees, of each size others, until it ends for want of memory (`NioDirectBufferPool`).
        options = _from_store(file.store_path, file.mount, block.offset, block.size, keep=True)
        # A worker reads from the store by itself what it is told to fetch from itself.
        host, _, port = worker.address.rpartition(":")
        request = MESSAGES["CacheRequest"](
            block_id=block.id,
            length=block.size,
            open_ufs_block_options=options,
            source_host=host,
            source_port=int(port),
        )
        await self._worker(worker.address).call(_WORKER, "Cache", request, "Empty", _LOAD_TIMEOUT_S)

    # -- data ------------------------------------------------------------------------------------------------------

    async def read(self, file: CachedFile) -> AsyncIterator[bytes]:
        for block in file.blocks:
            at = 0
            failure = "no worker is said to have it"
            # Not `block.size`: of the last block it is what a worker told, and no master checks that.
            size = min(file.block_size, file.size - block.offset)
            options = _from_store(file.store_path, file.mount, block.offset, size) if file.persisted else None
            # A block of several holders is read on from the next where one fails.
            for address in (*block.holders, *([""] if file.persisted else [])):
                try:
                    # From the store under an id that no worker has a block of, whole or not.
                    where = self._worker(address) if address else await self._any_worker()
                    identity = block.id if address else _unused_id()
                    async for chunk in self._read(where, identity, at, size, options):
                        at += len(chunk)
                        yield chunk
                    failure = f"{address or 'the store'} has {at} of {size} bytes"
                except EngineError as error:
                    failure = str(error)
                if at >= size:
                    break
            if at != size:
                kept = "persisted" if file.persisted else "not persisted"
                raise UnavailableError(
                    f"{file.path}, {kept}: no worker has all of block {block.id}: {shorten_middle(failure, 120)}"
                )

    async def read_store(self, url: str, mount: int, size: int) -> AsyncIterator[bytes]:
        where = await self._any_worker()
        options = _from_store(url, mount, 0, size + 1)
        async for chunk in self._read(where, _unused_id(), 0, size + 1, options):
            yield chunk

    async def _read(self, channel: Channel, block: int, at: int, size: int, options: Any) -> AsyncIterator[bytes]:
        if at >= size:
            return
        exchange = await channel.open(_WORKER, "ReadBlock", "ReadResponse", _TRANSFER_TIMEOUT_S)
        try:
            request = MESSAGES["ReadRequest"](block_id=block, offset=at, length=size - at, chunk_size=_CHUNK_BYTES)
            if options is not None:
                request.open_ufs_block_options.CopyFrom(options)
            await exchange.write(request)
            confirmed = at
            while (answer := await exchange.read()) is not None:
                at += len(answer.chunk.data)
                yield answer.chunk.data
                if at - confirmed >= _WINDOW_BYTES and at < size:
                    confirmed = at
                    await exchange.write(MESSAGES["ReadRequest"](offset_received=at))
        finally:
            exchange.cancel()

    async def write_store(self, url: str, mount: int, chunks: AsyncIterator[bytes]) -> None:
        channel = await self._any_worker()
        exchange = await channel.open(_WORKER, "WriteBlock", "WriteResponse", _TRANSFER_TIMEOUT_S)
        try:
            file = MESSAGES["CreateUfsFileOptions"](ufs_path=url, owner="", group="", mode=0o644, mount_id=mount)
            command = MESSAGES["WriteCommand"](
                type=_UFS_FILE, id=random.getrandbits(61), offset=0, create_ufs_file_options=file
            )
            await exchange.write(MESSAGES["WriteRequest"](command=command))
            async for chunk in chunks:
                for start in range(0, len(chunk), _CHUNK_BYTES):
                    piece = MESSAGES["Chunk"](data=bytes(chunk[start : start + _CHUNK_BYTES]))
                    await exchange.write(MESSAGES["WriteRequest"](chunk=piece))
            await exchange.done()
            while await exchange.read() is not None:
                pass
        finally:
            exchange.cancel()

    # -- channels --------------------------------------------------------------------------------------------------

    def _worker(self, address: str) -> Channel:
        if address not in self._workers:
            self._workers[address] = Channel(address)
        return self._workers[address]

    async def _any_worker(self) -> Channel:
        workers = await self.workers()
        if not workers:
            raise UnavailableError("no worker is registered")
        return self._worker(random.choice(workers).address)  # noqa: S311

    async def _master(self) -> Channel:
        """Return the channel of the primary master: the only one that answers."""
        await self.mounts()
        return self._masters[self._primary]

    async def _call(self, service: str, method: str, request: Any, answer: str) -> Any:
        """Call the primary master; if it does not answer, the others in turn. Calls may be sent twice."""
        failure: EngineError = UnavailableError("no master is configured")
        for turn in range(len(self._masters) + 1):
            index = (self._primary + turn) % len(self._masters)
            try:
                found = await self._masters[index].call(service, method, request, answer, TIMEOUT)
            except UnavailableError as error:
                failure = error
                continue
            self._primary = index
            return found
        raise failure


def _common_options(refresh: bool = False) -> Any:
    """Return options of requests that may make an inode: of a new directory, or of what is found in the under-store.

    Masters use no defaults for missing options. A `ttl` that is missing is 0 and its action is to delete: the inode
    expires at once, and the next look for expired ones deletes it with all that is below it, in the under-store too.
    """
    options = MESSAGES["CommonOptions"](ttl=_NO_EXPIRY, ttlAction=_FREE)
    if refresh:
        options.syncIntervalMs = 0
    return options


def _from_store(url: str, mount: int, offset: int, size: int, keep: bool = False) -> Any:
    return MESSAGES["OpenUfsBlockOptions"](
        ufs_path=url,
        offset_in_file=offset,
        block_size=size,
        maxUfsReadConcurrency=1_000,
        mountId=mount,
        no_cache=not keep,
    )


def _unused_id() -> int:
    """Return an id that no block has: what is read by it comes from the store, and stays there."""
    return random.getrandbits(61) | _ID_RANGE


def _make_file(info: Any) -> CachedFile:
    blocks = []
    for each in info.fileBlockInfos:
        block = each.blockInfo
        holders = tuple(_format_address(place.workerAddress) for place in block.locations)
        blocks.append(CachedBlock(block.blockId, each.offset, block.length, holders))
    return CachedFile(
        id=info.fileId,
        path=info.path,
        size=info.length,
        complete=info.completed,
        persisted=info.persistenceState == "PERSISTED",
        pinned=info.pinned,
        cached=info.inAlluxioPercentage,
        created=info.creationTimeMs / 1000,
        modified=info.lastModificationTimeMs / 1000,
        accessed=info.lastAccessTimeMs / 1000,
        mark=next((each.value for each in info.xattr if each.key == MARK), b""),
        store_path=info.ufsPath,
        mount=info.mountId,
        block_size=info.blockSizeBytes,
        blocks=tuple(blocks),
    )


def _format_address(address: Any) -> str:
    # In pods the host is that of the machine, and the worker listens at its pod's own.
    return f"{address.containerHost or address.host}:{address.rpcPort}"
