"""Model of a pack: its source, its shards and its target.

A target holds `shards/`, the data, and the numbers of classes; `records/`, one file per shard with a line for each
file; `manifest.jsonl`, the manifest of the shards, written last; and `.pack/`, the state by which an interrupted run
is continued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.datasets.errors import ArgumentError

SHARDS, RECORDS, STATE, MANIFEST = "shards/", "records/", ".pack/", "manifest.jsonl"
OPTIONS, CLASSES = f"{STATE}options.json", f"{SHARDS}classes.json"

Tell = Callable[[int, int], None]
"""Told files and bytes that were read since the last call."""


class PackFormat(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    """Formats of shards."""

    webdataset = "webdataset"
    tfrecord = "tfrecord"
    recordio = "recordio"
    lmdb = "lmdb"

    @property
    def suffix(self) -> str:
        """Return the end of a shard's name. Caffe opens the directory of a database."""
        return {"webdataset": ".tar", "tfrecord": ".tfrecord", "recordio": ".rec", "lmdb": "/data.mdb"}[self.value]

    @property
    def takes_one_file(self) -> bool:
        """Return True if a record is one file with the number of its class, and nothing else."""
        return self in (PackFormat.recordio, PackFormat.lmdb)


class SplitAt(str, Enum):  # noqa: UP042
    """Where the name of a file ends and its extension begins: files of one name are a sample."""

    first = "first-dot"
    last = "last-dot"


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
    stem: int
    """Length of the key up to the dot before the extension; of the whole key if there is no extension."""
    number: int | None
    """Number of its class; None if it has none."""
    labels: Mapping[str, Any]
    """Labels of its sample."""

    @property
    def name(self) -> str:
        """Return the name of its sample."""
        return self.key[: self.stem]

    @property
    def extension(self) -> str:
        """Return what follows the dot."""
        return self.key[self.stem + 1 :]


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
    split_at: SplitAt | None = None
    """None: at the first dot, if that is clear."""
    labels: str = ""
    """Names of directories, which label what is below them; "" if the source has labels or none."""
    class_label: str | None = None
    """Label that is the class; "": there are no classes; None: `class`, if there is one."""
    part_label: str | None = None
    """Label of which a shard has one value; "": shards have all; None: `split`, if there is one."""
    classes: Mapping[str, int] = {}
    """Numbers of classes that an earlier pack has given; {}: they are numbered."""

    def data(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        at = self.split_at.value if self.split_at is not None else None
        lists = {"match": [*self.match], "exclude": [*self.exclude], "classes": {**self.classes}}
        return {**self._asdict(), **lists, "format": self.format.value, "split_at": at}


def shard_bytes(text: str) -> int:
    """Parse the size of a shard. Raises ArgumentError."""
    try:
        size = int(parse_quantity(text))
    except ValueError:
        size = 0
    if size < 1024:
        raise ArgumentError(f"`{text}` is not the size of a shard", "write a quantity such as `1Gi`")
    return size
