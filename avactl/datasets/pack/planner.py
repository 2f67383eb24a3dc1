"""Plan of the shards: which files go into which, in a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import orjson

from avactl.datasets.errors import DatasetError
from avactl.datasets.pack.model import PackFormat, Settings, Shard
from avactl.datasets.stores.store import FoundObject
from avactl.datasets.text import display_name

_FILE_OVERHEAD_BYTES = 1024
"""Bytes that a file takes in a tar beyond its content, at most: header and padding."""


_RECORD_LIMITS = {PackFormat.tfrecord: (2**31 - 2**20, "2 GiB"), PackFormat.recordio: (2**29 - 2**10, "512 MiB")}
"""Largest samples: a protobuf message, and a record whose length has 29 bits."""


def sample_name(key: str) -> tuple[str, str]:
    """Split a path at the first dot of the file's name, as WebDataset does; without one, the second part is ""."""
    start = key.rfind("/") + 1
    dot = key.find(".", start)
    return (key[:dot], key[dot + 1 :]) if dot > start else (key, "")


def plan(objects: Iterable[tuple[FoundObject, str]], settings: Settings) -> Iterator[Shard]:
    """Yield the shards. A sample, the files with one name before the first dot, stays together.

    Raises DatasetError for samples that the format cannot hold.
    """
    options = orjson.dumps(settings.data(), option=orjson.OPT_SORT_KEYS)
    labelled, limit = settings.format is PackFormat.recordio, _RECORD_LIMITS.get(settings.format)
    directories: dict[str, int] = {}
    rows: list[tuple[str, int, str, str, str, int, int]] = []
    number = size = label = 0
    for count, sample in enumerate(_make_samples(objects, settings.format)):
        needs = 0
        for found, _ in sample:
            needs += found.size + _FILE_OVERHEAD_BYTES
        if limit is not None and needs > limit[0]:
            raise _too_large(sample, settings.format, limit[1])
        if rows and (size + needs > settings.shard_size or len(rows) + len(sample) > settings.shard_records):
            yield _make_shard(number, rows, options)
            rows, size, number = [], 0, number + 1
        for (key, length, etag, stamp), sha256 in sample:
            if labelled:
                label = directories.setdefault(key.rpartition("/")[0], len(directories))
            rows.append((key, length, etag, stamp, sha256, count, label))
        size += needs
    if rows:
        yield _make_shard(number, rows, options)


def _make_shard(number: int, rows: list[tuple[str, int, str, str, str, int, int]], options: bytes) -> Shard:
    data = orjson.dumps(rows)
    return Shard(number, len(rows), data, hashlib.sha256(options + data).hexdigest())


_Sample = list[tuple[FoundObject, str]]


def _too_large(sample: _Sample, format: PackFormat, limit: str) -> DatasetError:
    largest = max((found for found, _ in sample), key=lambda found: found.size)
    text = f"{display_name(largest.key)} has {largest.size:,} bytes; a record of {format.value} has at most {limit}"
    return DatasetError(text, "use `--format webdataset`")


def _make_samples(objects: Iterable[tuple[FoundObject, str]], format: PackFormat) -> Iterator[_Sample]:
    if format is PackFormat.recordio:
        for each in objects:
            yield [each]
        return
    for name, sample, extensions in _group_by_name(objects):
        if len(sample) > 1 or not extensions[0]:
            _want_distinct(name, sample, extensions, format)
        yield sample


def _group_by_name(objects: Iterable[tuple[FoundObject, str]]) -> Iterator[tuple[str, _Sample, list[str]]]:
    """Group files by the name before the first dot; yield names, files and extensions.

    In the order of keys, files of the directory `a.d/` come between `a.cls` and `a.jpg`: the sample stays open.
    """
    open_samples: list[tuple[str, _Sample, list[str]]] = []
    for each in objects:
        key = each[0].key
        name, extension = sample_name(key)
        while open_samples and not key.startswith(open_samples[-1][0] + "."):
            yield open_samples.pop()
        if open_samples and open_samples[-1][0] == name:
            open_samples[-1][1].append(each)
            open_samples[-1][2].append(extension)
        else:
            open_samples.append((name, [each], [extension]))
    while open_samples:
        yield open_samples.pop()


def _want_distinct(name: str, sample: _Sample, extensions: list[str], format: PackFormat) -> None:
    """Raise DatasetError for files that a reader drops: their extensions are missing, or equal but for case."""
    seen: dict[str, str] = {}
    for (found, _), extension in zip(sample, extensions, strict=True):
        if not extension and format is PackFormat.webdataset:
            hint = f"rename it, or leave it out: `--exclude '{display_name(found.key)}'`"
            raise DatasetError(f"{display_name(found.key)} has no extension, so WebDataset ignores it", hint)
        other = seen.setdefault(extension.lower(), found.key)
        if other != found.key:
            text = (
                f"{display_name(other)} and {display_name(found.key)} are one field of the sample {display_name(name)}"
            )
            raise DatasetError(text, "rename one of them, or leave it out with `--exclude`")
