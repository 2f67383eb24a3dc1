"""Plan of the shards: which files go into which, in a stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from avactl.datasets.errors import DatasetError
from avactl.datasets.pack.classes import Classes
from avactl.datasets.pack.model import PackFormat, Settings, Shard, SplitAt
from avactl.datasets.selection import label_text
from avactl.datasets.sources import SourceObject
from avactl.datasets.text import display_name

_FILE_OVERHEAD_BYTES = 1024
"""Bytes that a file takes in a tar beyond its content, at most: header and padding."""


_RECORD_LIMITS = {
    PackFormat.tfrecord: (2**31 - 2**20, "2 GiB"),
    PackFormat.recordio: (2**29 - 2**10, "512 MiB"),
    PackFormat.lmdb: (2**31 - 2**20, "2 GiB"),
}
"""Largest samples: a protobuf message, and a record whose length has 29 bits."""
_IS_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*").fullmatch
LABELS_EXTENSION = "labels.json"
"""Extension of the labels in a sample of WebDataset."""
_RESERVED = {
    PackFormat.webdataset: (LABELS_EXTENSION, "__key__", "label", "labels"),
    PackFormat.tfrecord: ("__key__", "label", "labels"),
}
"""Extensions that are names of fields with another meaning."""


def name_length(key: str, at: SplitAt | None) -> int:
    """Return the length of a path up to the dot before its extension; of the whole path if it has none.

    The first dot of the file's name is where WebDataset splits it.
    """
    start = key.rfind("/") + 1
    dot = key.rfind(".", start) if at is SplitAt.last else key.find(".", start)
    return dot if dot > start else len(key)


class _Sample(NamedTuple):
    name: str
    files: list[SourceObject]
    extensions: list[str]

    def labels(self) -> Mapping[str, Any]:
        """Return the labels of its files together. Raises DatasetError if they differ."""
        if len(self.files) == 1:
            return self.files[0].labels
        found: dict[str, Any] = {}
        for each in self.files:
            for name, value in each.labels.items():
                if label_text(found.setdefault(name, value)) != label_text(value):
                    text = f"files of the sample {display_name(self.name)} have the label `{name}` "
                    text += f"{display_name(label_text(found[name]))} and {display_name(label_text(value))}"
                    raise DatasetError(text, "give the files of a sample the same labels, or other names")
        return found


def plan(objects: Callable[[], Iterable[SourceObject]], settings: Settings, classes: Classes) -> Iterator[Shard]:
    """Yield the shards. A sample stays together, and a shard has samples of one part.

    Raises DatasetError for samples that the format cannot hold.
    """
    options = orjson.dumps([settings.data(), {**classes.numbers}], option=orjson.OPT_SORT_KEYS)
    limit = _RECORD_LIMITS.get(settings.format)
    number = count = 0
    for part in classes.parts or (None,):
        rows: list[tuple[Any, ...]] = []
        size = 0
        for sample in _make_samples(objects(), settings):
            labels = sample.labels()
            if part is not None and classes.part_of(labels) != part:
                continue
            needs = sum(each.found.size + _FILE_OVERHEAD_BYTES for each in sample.files)
            if limit is not None and needs > limit[0]:
                raise _too_large(sample, settings.format, limit[1])
            if rows and (size + needs > settings.shard_size or len(rows) + len(sample.files) > settings.shard_records):
                yield _make_shard(number, rows, options)
                rows, size, number = [], 0, number + 1
            key = sample.files[0].found.key
            class_number, stem = classes.number(key, labels, settings.format), len(sample.name)
            for found, sha256, _ in sample.files:
                rows.append((*found, sha256, count, stem, class_number, labels))
            size += needs
            count += 1
        if rows:
            yield _make_shard(number, rows, options)
            number += 1


def _make_shard(number: int, rows: list[tuple[Any, ...]], options: bytes) -> Shard:
    data = orjson.dumps(rows)
    return Shard(number, len(rows), data, hashlib.sha256(options + data).hexdigest())


def _too_large(sample: _Sample, format: PackFormat, limit: str) -> DatasetError:
    largest = max((each.found for each in sample.files), key=lambda found: found.size)
    text = f"{display_name(largest.key)} has {largest.size:,} bytes; a record of {format.value} has at most {limit}"
    return DatasetError(text, "use `--format webdataset`")


def _make_samples(objects: Iterable[SourceObject], settings: Settings) -> Iterator[_Sample]:
    if settings.format.takes_one_file:
        for each in objects:
            yield _Sample(each.found.key, [each], [""])
        return
    for sample in _group_by_name(objects, settings.split_at):
        if len(sample.files) > 1 or not sample.extensions[0] or "." in sample.extensions[0]:
            _want_distinct(sample, settings)
        _want_free(sample, settings)
        yield sample


def _group_by_name(objects: Iterable[SourceObject], at: SplitAt | None) -> Iterator[_Sample]:
    """Group files by their names.

    In the order of keys, files of the directory `a.d/` come between `a.cls` and `a.jpg`: the sample stays open.
    """
    open_samples: list[_Sample] = []
    for each in objects:
        key = each.found.key
        stem = name_length(key, at)
        name, extension = key[:stem], key[stem + 1 :]
        while open_samples and not key.startswith(open_samples[-1].name + "."):
            yield open_samples.pop()
        if open_samples and open_samples[-1].name == name:
            open_samples[-1].files.append(each)
            open_samples[-1].extensions.append(extension)
        else:
            open_samples.append(_Sample(name, [each], [extension]))
    while open_samples:
        yield open_samples.pop()


def _want_distinct(sample: _Sample, settings: Settings) -> None:
    """Raise DatasetError for files that a reader drops, or takes for fields of another sample.

    Their extensions are missing, or equal but for case; or they contain dots that rather belong to the name.
    """
    seen: dict[str, str] = {}
    for each, extension in zip(sample.files, sample.extensions, strict=True):
        key = each.found.key
        if not extension and settings.format is PackFormat.webdataset:
            hint = f"rename it, or leave it out: `--exclude '{display_name(key)}'`"
            raise DatasetError(f"{display_name(key)} has no extension, so WebDataset ignores it", hint)
        other = seen.setdefault(extension.lower(), key)
        if other != key:
            text = f"{display_name(other)} and {display_name(key)} are one field of the sample "
            raise DatasetError(text + display_name(sample.name), "rename one of them, or leave it out with `--exclude`")
    if settings.split_at is None:
        _want_clear_dots(sample)


def _want_clear_dots(sample: _Sample) -> None:
    """Raise DatasetError for names with several dots, unless a file has the part before the first one as its name."""
    confirmed = len(sample.files) == 1 or any(extension and "." not in extension for extension in sample.extensions)
    for each, extension in zip(sample.files, sample.extensions, strict=True):
        if "." not in extension or (confirmed and all(map(_IS_WORD, extension.split(".")[:-1]))):
            continue
        name, _, last = each.found.key.rpartition(".")
        name, shown = display_name(name.rpartition("/")[2]), display_name(sample.name.rpartition("/")[2])
        text = f"{display_name(each.found.key)} has several dots: is it `{display_name(extension)}` of the sample "
        hint = f"`--split-at first-dot`: a sample `{shown}`; `--split-at last-dot`: a sample `{name}`"
        raise DatasetError(f"{text}`{shown}`, or `{display_name(last)}` of `{name}`?", hint)


def _want_free(sample: _Sample, settings: Settings) -> None:
    """Raise DatasetError for files whose extensions are fields of labels."""
    for each, extension in zip(sample.files, sample.extensions, strict=True):
        if extension.lower() in _RESERVED[settings.format]:
            text = f"{display_name(each.found.key)} takes the field `{display_name(extension)}`, which labels have"
            raise DatasetError(text, "rename it, or leave it out with `--exclude`")
