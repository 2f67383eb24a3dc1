"""Records of packed shards: the readers of what `avactl dataset pack` writes.

A record is a dict of `__key__`, the name of the sample; its files' contents by their extensions, or `data` if there is
none; `label`, the number of its class, or None; and `labels`, as far as the format has them. Contents are bytes:
decoding is the script's.

Sources: POSIX.1-2001 pax (tar); TensorFlow `record_writer.cc` and `example.proto` (TFRecord); dmlc-core `recordio.h`
and MXNet's `IRHeader` (RecordIO); Caffe's `caffe.proto` (`Datum` in LMDB).
"""

from __future__ import annotations

import json
import os
import struct
import tarfile
from itertools import islice
from typing import Any, Callable, Dict, Iterator

from avactl_worker.wire import Field, Message

Record = Dict[str, Any]
_RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)
_OWN_FIELDS = ("__key__", "label", "labels")
_IMAGE_HEADER = struct.Struct("<IfQQ")


class RecordError(ValueError):
    """A shard cannot be read; the message names it."""


def read_records(file: str | os.PathLike[str], start: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the records `start` to `end` (exclusive) of a shard, by default all.

    The format follows from the name: `.tar`, `.tfrecord`, `.rec`, or a `data.mdb` or its directory. Shards with an
    index beside them (`.idx`) are read from the first record on; a tar is passed over up to it, header by header.
    Raises RecordError, OSError.
    """
    path = os.fspath(file)
    name = os.path.basename(path)  # noqa: PTH119 - any kind of path
    reader = _READERS.get("mdb" if os.path.isdir(path) else name.rpartition(".")[2])  # noqa: PTH112
    if reader is None:
        raise RecordError(f"{path}: its name has no end of a format of shards: .tar, .tfrecord, .rec, data.mdb")
    try:
        yield from reader(path, start, end)
    except RecordError:
        raise
    except (struct.error, tarfile.TarError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: {error}") from None


# -- tar ---------------------------------------------------------------------------------------------------------------


def _read_tar(path: str, start: int, end: int | None) -> Iterator[Record]:
    number, key = -1, None
    whole = os.path.getsize(path)  # noqa: PTH202
    record: Record = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # it keeps all, for a second pass
            if not member.isfile():
                continue
            # What is longer than the file would be made of holes, of any size.
            if member.issparse() or member.size > whole:
                raise RecordError(f"{path}: {member.name[:200]} has more bytes than the shard")
            name, extension = _split_name(member.name)
            if extension in _OWN_FIELDS:
                raise RecordError(f"{path}: {member.name[:200]} takes the place of a record's `{extension}`")
            if name != key:
                if record:
                    yield _with_label(record)
                number, key, record = number + 1, name, {}
                if end is not None and number >= end:
                    return
            if number >= start:
                content = tar.extractfile(member).read()  # type: ignore[union-attr]  # a file
                record = record or {"__key__": _plain_name(name), "label": None, "labels": {}}
                record[extension] = content
        with open(path, "rb") as file:  # noqa: PTH123
            file.seek(tar.offset)
            if file.read(512) != bytes(512):
                raise RecordError(f"{path} ends without the end of a tar")
    if record:
        yield _with_label(record)


def _split_name(name: str) -> tuple[str, str]:
    dot = name.find(".", name.rfind("/") + 2)
    return (name[:dot], name[dot + 1 :].lower()) if dot > 0 else (name, "data")


def _plain_name(name: str) -> str:
    return name.replace("%2E", ".").replace("%25", "%")


def _with_label(record: Record) -> Record:
    labels = record.pop("labels.json", None)
    if labels is not None:
        record["labels"] = json.loads(labels)
    number = record.get("cls", b"").strip()
    if number.isdigit():
        record["label"] = int(number)
    return record


# -- TFRecord ----------------------------------------------------------------------------------------------------------


def _read_tfrecord(path: str, start: int, end: int | None) -> Iterator[Record]:
    whole = os.path.getsize(path)  # noqa: PTH202
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(_place(path, start, " ", 0))
        while end is None or start < end:
            head = file.read(12)
            if not head:
                return
            (length,) = struct.unpack_from("<Q", head)
            if length > whole:
                raise RecordError(f"{path} ends within record {start}")
            example = file.read(length + 4)
            if len(example) < length + 4:
                raise RecordError(f"{path} ends within record {start}")
            yield _record_of_example(example[:length])
            start += 1


class _BytesList(Message):
    FIELDS = {"value": Field(1, "bytes", True)}


class _Int64List(Message):
    FIELDS = {"value": Field(1, "uint64", True)}


class _Feature(Message):
    FIELDS = {"bytes_list": Field(1, _BytesList), "int64_list": Field(3, _Int64List)}


class _Entry(Message):
    FIELDS = {"key": Field(1, "string"), "value": Field(2, _Feature)}


class _Features(Message):
    FIELDS = {"feature": Field(1, _Entry, True)}


class _Example(Message):
    FIELDS = {"features": Field(1, _Features)}


def _record_of_example(example: bytes) -> Record:
    record: Record = {"__key__": "", "label": None, "labels": {}}
    features: Any = _Example.decode(example)
    for entry in features.features.feature if features.features is not None else ():
        name, feature = entry.key, entry.value
        found = feature and (feature.bytes_list or feature.int64_list)
        value: Any = found.value[0] if found and found.value else None
        if name.startswith("label/"):
            record["labels"][name[6:]] = value.decode() if isinstance(value, bytes) else value
        elif name == "__key__":
            record[name] = value.decode() if isinstance(value, bytes) else str(value)
        elif name == "labels" or (name == "label" and not isinstance(value, int)):
            raise RecordError(f"a feature takes the place of a record's `{name}`")
        else:
            record[name] = value
    return record


# -- RecordIO ----------------------------------------------------------------------------------------------------------


def _read_recordio(path: str, start: int, end: int | None) -> Iterator[Record]:
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(_place(path, start, "\t", 1))
        while end is None or start < end:
            parts: list[bytes] = []
            flag = 1
            while flag in (1, 2):
                head = file.read(8)
                if not head and not parts:
                    return
                magic, size = struct.unpack("<4sI", head)
                flag, length = size >> 29, size & (1 << 29) - 1
                part = file.read(length + -length % 4)
                if magic != _RECORDIO_MAGIC or len(part) < length:
                    raise RecordError(f"{path} is damaged in record {start}")
                parts.append(part[:length])
            data = _RECORDIO_MAGIC.join(parts)
            _, label, number, _ = _IMAGE_HEADER.unpack_from(data)
            yield {"__key__": str(number), "label": int(label), "labels": {}, "data": data[_IMAGE_HEADER.size :]}
            start += 1


def _place(path: str, start: int, separator: str, column: int) -> int:
    """Return the place of a record by the index beside a shard. Raises RecordError."""
    if not start:
        return 0
    index = os.path.splitext(path)[0] + ".idx"  # noqa: PTH122
    try:
        with open(index, encoding="ascii") as lines:  # noqa: PTH123
            line = next(islice(lines, start, None))
        return int(line.split(separator)[column])
    except (OSError, StopIteration, ValueError, IndexError) as error:
        raise RecordError(f"{index} does not tell where record {start} is: {error!r}") from None


# -- LMDB --------------------------------------------------------------------------------------------------------------


def _read_lmdb(path: str, start: int, end: int | None) -> Iterator[Record]:
    try:
        import lmdb
    except ModuleNotFoundError:
        raise RecordError(f"{path}: reading LMDB needs the package lmdb") from None
    folder = path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112, PTH120
    try:
        with lmdb.open(folder, readonly=True, lock=False, readahead=False) as database, database.begin() as transaction:
            for key, value in islice(transaction.cursor(), start, end):
                yield _record_of_datum(bytes(key), value)
    except lmdb.Error as error:
        raise RecordError(f"{path} is no database, or damaged: {error}") from None


class _Datum(Message):
    FIELDS = {"data": Field(4, "bytes"), "label": Field(5, "uint64")}


def _record_of_datum(key: bytes, datum: bytes) -> Record:
    found: Any = _Datum.decode(datum)
    return {"__key__": key.decode(), "label": found.label, "labels": {}, "data": found.data}


_READERS: dict[str, Callable[[str, int, int | None], Iterator[Record]]] = {
    "tar": _read_tar,
    "tfrecord": _read_tfrecord,
    "rec": _read_recordio,
    "mdb": _read_lmdb,
}
