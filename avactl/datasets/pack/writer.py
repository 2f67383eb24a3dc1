"""Writing of one shard: read, check, resize, encode, and record what was written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import orjson

from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import DatasetError, ObjectStoreError
from avactl.datasets.images import UnreadableImageError, is_image
from avactl.datasets.pack.formats import Log, encode_shard
from avactl.datasets.pack.images import Resize, parse_resize, resize_image
from avactl.datasets.pack.model import (
    RECORDS,
    SHARDS,
    STATE,
    ArchiveMember,
    PackFormat,
    PackItem,
    Settings,
    Shard,
    Tell,
)
from avactl.datasets.selection import label_text
from avactl.datasets.stores.store import CHUNK, FoundObject, Store
from avactl.datasets.text import display_name

_READ_THREADS = 16
"""Objects of a remote store that a worker reads at once."""
_PROGRESS_STEP = 500


class ShardWriter:
    """Writes shards of one source into one target."""

    def __init__(self, source: Store, target: Store, settings: Settings, tell: Tell) -> None:
        self._source, self._target, self._settings, self._tell = source, target, settings, tell
        self._resize: Resize | None = parse_resize(settings.resize) if settings.resize else None
        self._remote = source.location.scheme != "file"
        self._skipped: list[str] = []

    def write(self, shard: Shard) -> dict[str, Any]:
        """Write a shard, then its records, then its state, and return the state.

        Raises DatasetError, StoreError.
        """
        self._skipped = []
        name = shard.name + self._settings.format.suffix
        items = [PackItem(*row) for row in orjson.loads(shard.rows)]
        log, digest, size = Log(name, sum(item.size for item in items)), hashlib.sha256(), 0

        def content() -> Iterator[bytes]:
            nonlocal size
            for chunk in encode_shard(self._settings.format, self._members(items), log):
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        self._target.write(SHARDS + name, content())
        objects: list[dict[str, Any]] = [
            {"key": SHARDS + name, "size": size, "sha256": digest.hexdigest(), "records": log.samples}
        ]
        if labels := _common_labels(items):
            objects[0]["labels"] = labels
        if log.index:
            index = self._put(f"{SHARDS}{shard.name}.idx", b"".join(log.index))
            objects.append({**index, "labels": labels} if labels else index)
        records = self._put(f"{RECORDS}{shard.name}.jsonl", b"".join(log.records))
        for each in (objects[0], records):
            written = self._target.find(str(each["key"]))
            if written is None or written.size != each["size"]:
                now = "is gone" if written is None else f"has {written.size:,} bytes"
                raise ObjectStoreError(
                    f"{self._target.location}/{each['key']} {now} after {each['size']:,} were written"
                )
        state = {
            "stamp": shard.stamp,
            "objects": objects,
            "records": records,
            "files": len(log.records),
            "kinds": Counter(_file_kind(item.key) for item in items),
            "read": log.listed,
            "skipped": self._skipped,
        }
        self._target.write(f"{STATE}{shard.name}.json", orjson.dumps(state))
        return state

    def _put(self, key: str, content: bytes) -> dict[str, Any]:
        self._target.write(key, content)
        return {"key": key, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def _members(self, items: list[PackItem]) -> Iterator[ArchiveMember]:
        """Yield the files in order, with their content; several at once are read from a remote store."""
        read: Iterable[tuple[PackItem, bytes | None]]
        if self._remote:
            read = in_threads(lambda item: (item, self._read_small(item)), items, _READ_THREADS, 2 * _READ_THREADS)
        else:
            read = ((item, self._read_small(item)) for item in items)
        read = self._count_read(read)
        if self._resize is None:
            return (self._member(item, content) for item, content in read)
        return self._readable_members(read, self._resize)

    def _count_read(self, read: Iterable[tuple[PackItem, bytes | None]]) -> Iterator[tuple[PackItem, bytes | None]]:
        files = size = 0
        for pair in read:
            files += 1
            size += pair[0].size
            if files == _PROGRESS_STEP or size > CHUNK:
                self._tell(files, size)
                files = size = 0
            yield pair
        self._tell(files, size)

    def _readable_members(self, read: Iterable[tuple[PackItem, bytes | None]], size: Resize) -> Iterator[ArchiveMember]:
        """Yield the files with images resized; a sample with an unreadable one is left out as a whole."""
        for _, pairs in groupby(read, key=lambda pair: pair[0].sample):
            sample: list[ArchiveMember] = []
            readable = True
            for item, content in pairs:
                member = self._member(item, content if content or not is_image(item.key) else self._read_whole(item))
                if is_image(item.key) and isinstance(member.content, bytes):
                    try:
                        new = resize_image(member.content, item.key, size)
                    except UnreadableImageError:
                        if not self._settings.skip_unreadable:
                            raise
                        self._skipped.append(item.key)
                        readable = False
                    else:
                        member = ArchiveMember(item, len(new), new)
                sample.append(member)
            if readable:
                yield from sample

    def _read_small(self, item: PackItem) -> bytes | None:
        """Return the content of a file that is read ahead; None for a large one."""
        return self._source.read(_as_found(item)) if item.size <= CHUNK else None

    def _read_whole(self, item: PackItem) -> bytes:
        return self._source.read(_as_found(item))

    def _member(self, item: PackItem, content: bytes | None) -> ArchiveMember:
        """Return a file with its content checked, or to be checked as it is streamed."""
        if content is None:
            if self._settings.format is PackFormat.webdataset:
                return ArchiveMember(item, item.size, self._check_stream(item))
            content = self._read_whole(item)
        if item.sha256:
            _want_digest(item, hashlib.sha256(content).hexdigest())
        return ArchiveMember(item, item.size, content)

    def _check_stream(self, item: PackItem) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in self._source.stream(_as_found(item)):
            digest.update(chunk)
            yield chunk
        if item.sha256:
            _want_digest(item, digest.hexdigest())


def _common_labels(items: list[PackItem]) -> dict[str, Any]:
    """Return the labels that all items have."""
    found = dict(items[0].labels)
    for item in items:
        found = {
            name: value
            for name, value in found.items()
            if name in item.labels and label_text(item.labels[name]) == label_text(value)
        }
        if not found:
            break
    return found


def _file_kind(key: str) -> str:
    """Return the last extension of a file in lower case."""
    return key[key.rfind("/") + 1 :].rpartition(".")[2].lower() if "." in key[key.rfind("/") + 2 :] else ""


def _as_found(item: PackItem) -> FoundObject:
    return FoundObject(item.key, item.size, item.etag, item.stamp)


def _want_digest(item: PackItem, sha256: str) -> None:
    if sha256 != item.sha256:
        message = (
            f"{display_name(item.key)} has other content than the manifest says: SHA-256 {sha256}, not {item.sha256}"
        )
        raise DatasetError(message, "restore the object; `avactl dataset verify --content` lists all that differ")
