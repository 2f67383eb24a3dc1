"""Model of a pack: its source, its shards and its target.

A target holds `shards/`, the data; `records/`, one file per shard with a line for each record; `manifest.jsonl`, the
manifest of the shards, written last; and `.pack/`, the state by which an interrupted run is continued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.datasets.errors import ArgumentError

SHARDS, RECORDS, STATE, MANIFEST = "shards/", "records/", ".pack/", "manifest.jsonl"
OPTIONS = f"{STATE}options.json"


Tell = Callable[[int, int], None]
"""Told files and bytes that were read since the last call."""


class PackFormat(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    """Formats of shards."""

    webdataset = "webdataset"
    tfrecord = "tfrecord"
    recordio = "recordio"

    @property
    def suffix(self) -> str:
        """Return the end of a shard's name."""
        return {"webdataset": ".tar", "tfrecord": ".tfrecord", "recordio": ".rec"}[self.value]


class PackItem(NamedTuple):
    """One file of a plan, as listed."""

    key: str
    size: int
    etag: str
    stamp: str
    sha256: str
    """Expected digest in hex; "" if unknown."""
    sample: int
    """Number of its sample in the whole pack, from 0."""
    label: int
    """For RecordIO: number of its directory in the order of names."""


class Shard(NamedTuple):
    """A shard to write: the files of whole samples."""

    number: int
    files: int
    rows: bytes
    """The items as a JSON list of lists: memory and time for millions of objects less."""
    stamp: str
    """Digest of the files as listed and of all options: another one means another shard."""

    @property
    def name(self) -> str:
        """Return the name without its suffix."""
        return f"shard-{self.number:06}"


class ArchiveMember(NamedTuple):
    """One file with its content."""

    item: PackItem
    size: int
    content: bytes | Iterator[bytes]
    """Chunks for large files in a tar."""


class Settings(NamedTuple):
    """Settings that decide the content of shards, and of workers that write them."""

    format: PackFormat
    shard_size: int
    shard_records: int
    resize: str
    skip_unreadable: bool
    match: tuple[str, ...]
    exclude: tuple[str, ...]
    url: str
    """URL of the target in the manifest, where it is not the target's own: for shards that are uploaded later."""
    pillow: str
    """Version of Pillow if images are resized: another one may encode them differently."""

    def data(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {**self._asdict(), "format": self.format.value, "match": [*self.match], "exclude": [*self.exclude]}


def shard_bytes(text: str) -> int:
    """Parse the size of a shard. Raises ArgumentError."""
    try:
        size = int(parse_quantity(text))
    except ValueError:
        size = 0
    if size < 1024:
        raise ArgumentError(f"`{text}` is not the size of a shard", "write a quantity such as `1Gi`")
    return size
