"""Encoders of shards. Each takes files, yields the bytes of a shard, and logs its records.

Sources: POSIX.1-2001 pax (tar); TensorFlow `tensorflow/core/lib/io/record_writer.cc` and `example.proto` (TFRecord);
dmlc-core `recordio.h`, `recordio.cc` and MXNet's `IRHeader` (RecordIO); Caffe's `caffe.proto` (`Datum` in LMDB).
"""

from __future__ import annotations

import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson
from google_crc32c import extend
from google_crc32c import value as crc32c

from avactl.datasets.pack.model import ArchiveMember, PackFormat, PackItem
from avactl.datasets.pack.planner import LABELS_EXTENSION
from avactl.datasets.selection import label_text

_CHUNK_BYTES = 512 * 1024
"""Bytes that are joined before they are written: they stay in the processor's cache."""


@dataclass
class Log:
    """Records of one shard."""

    shard: str
    """Name of the shard's file."""
    listed: int = 0
    """Bytes of its files, as listed."""
    records: list[bytes] = field(default_factory=list)
    """A JSON line per file: where its bytes are in the shard, and their CRC-32C."""
    index: list[bytes] = field(default_factory=list)
    """Lines of the index that readers of the format use; none for tar and LMDB."""
    samples: int = 0

    def add(self, key: str, length: int, crc: int, **more: Any) -> None:
        """Log a file."""
        record = {"shard": self.shard, "key": key, "length": length, "crc32c": f"{crc:08x}", **more}
        self.records.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def encode_shard(format: PackFormat, members: Iterable[ArchiveMember], log: Log) -> Iterator[bytes]:
    """Yield a shard in large chunks; the files of a sample follow each other."""
    parts: list[bytes] = []
    size = 0
    for piece in _ENCODERS[format](members, log):
        parts.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


# -- tar -----------------------------------------------------------------------------------------------------------

_OWNER, _TIME = b"0000644\0" + b"0000000\0" * 2, b"00000000000\0"
_HEADER_REST = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_HEADER_SUM = sum(_OWNER + _TIME + _HEADER_REST) + 8 * ord(" ")


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a file in a tar. It has no times, owners and modes: the same file gives the same bytes."""
    if len(name) <= 100 and name.isascii() and size < 8**11:
        raw, digits = name.encode(), b"%011o\0" % size
        checksum = _HEADER_SUM + sum(raw) + sum(digits)
        return b"%b%b%b%b%06o\0 %b" % (raw.ljust(100, b"\0"), _OWNER, digits, _TIME, checksum, _HEADER_REST)
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _encode_webdataset(members: Iterable[ArchiveMember], log: Log) -> Iterator[bytes]:
    offset, before = 0, b""
    for _, sample in groupby(members, key=lambda member: member.item.sample):
        log.samples += 1
        extensions = set()
        for item, size, content in sample:
            name, extension = _tar_name(item.name), item.extension
            extensions.add(extension.lower())
            header = tar_header(f"{name}.{extension}", size)
            yield before + header
            offset += len(header)
            if isinstance(content, bytes):
                yield content
                log.add(item.key, size, crc32c(content), offset=offset)
            else:
                crc = 0
                for chunk in content:
                    crc = extend(crc, chunk)
                    yield chunk
                log.add(item.key, size, crc, offset=offset)
            before = bytes(-size % 512)
            offset += size + len(before)
        for extension, text in _label_files(item, extensions):
            header = tar_header(f"{name}.{extension}", len(text))
            yield before + header + text
            before = bytes(-len(text) % 512)
            offset += len(header) + len(text) + len(before)
    # Two empty blocks end a tar; writers fill up its last record.
    yield before + bytes(1024 + -(offset + 1024) % tarfile.RECORDSIZE)


def _tar_name(name: str) -> str:
    """Return the name of a sample, whose readers end it at the first dot of its last part."""
    directory, slash, last = name.rpartition("/")
    return directory + slash + last[:1] + last[1:].replace("%", "%25").replace(".", "%2E")


def _label_files(item: PackItem, extensions: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a sample's labels: the number of its class, as far as it has none of its own, and all."""
    if item.number is not None and "cls" not in extensions:
        yield "cls", b"%d" % item.number
    if item.labels:
        yield LABELS_EXTENSION, orjson.dumps(item.labels, option=orjson.OPT_SORT_KEYS)


# -- TFRecord ------------------------------------------------------------------------------------------------------


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _feature_header(name: str, length: int) -> bytes:
    """Return what comes before the content in `features.feature[name].bytes_list.value[0]`, with its own lengths."""
    head = b"\x0a" + _encode_varint(length)
    for tag in (b"\x0a", b"\x12"):  # BytesList in Feature, Feature in the map's entry
        head = tag + _encode_varint(len(head) + length) + head
    key = name.encode()
    head = b"\x0a" + _encode_varint(len(key)) + key + head
    return b"\x0a" + _encode_varint(len(head) + length) + head


def _label_features(item: PackItem) -> Iterator[tuple[str, bytes]]:
    yield "__key__", item.name.encode()
    for name, value in sorted(item.labels.items()):
        yield f"label/{name}", label_text(value).encode()


def _int_feature(name: str, value: int) -> bytes:
    """Return `features.feature[name].int64_list.value[0]` of an Example."""
    number = _encode_varint(value)
    entry = number = b"\x0a" + _encode_varint(len(number)) + number  # packed values of an Int64List
    entry = b"\x1a" + _encode_varint(len(number)) + number
    key = name.encode()
    entry = b"\x0a" + _encode_varint(len(key)) + key + b"\x12" + _encode_varint(len(entry)) + entry
    return b"\x0a" + _encode_varint(len(entry)) + entry


def _encode_tfrecord(members: Iterable[ArchiveMember], log: Log) -> Iterator[bytes]:
    offset = 0
    for _, sample in groupby(members, key=lambda member: member.item.sample):
        log.samples += 1
        parts: list[bytes] = []
        places: list[tuple[ArchiveMember, int]] = []
        size = 0
        for member in sample:
            item = member.item
            if not parts:
                for name, value in _label_features(item):
                    parts += (_feature_header(name, len(value)), value)
                if item.number is not None:
                    parts.append(_int_feature("label", item.number))
                size = sum(map(len, parts))
            head = _feature_header(item.extension.lower() or "data", member.size)
            places.append((member, size + len(head)))
            parts += (head, _whole_content(member))
            size += len(head) + member.size
        example = b"".join((b"\x0a", _encode_varint(size), *parts))
        start = offset + 12 + len(example) - size
        for member, place in places:
            log.add(member.item.key, member.size, crc32c(_whole_content(member)), offset=start + place)
        length = struct.pack("<Q", len(example))
        log.index.append(b"%d %d\n" % (offset, len(example) + 16))
        yield b"".join((length, _masked_crc(length), example, _masked_crc(example)))
        offset += len(example) + 16


# -- RecordIO ------------------------------------------------------------------------------------------------------

_RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)
_IMAGE_HEADER = struct.Struct("<IfQQ")


def _encode_recordio(members: Iterable[ArchiveMember], log: Log) -> Iterator[bytes]:
    offset = 0
    for member in members:
        log.samples += 1
        item, content = member.item, _whole_content(member)
        number = item.number or 0
        pieces, parts = _split_record(_IMAGE_HEADER.pack(0, number, item.sample, 0) + content, offset)
        more: dict[str, Any] = {"id": item.sample, "label": number}
        if len(parts) > 1:
            more["parts"] = parts
        log.add(item.key, member.size, crc32c(content), offset=parts[0][0], **more)
        log.index.append(b"%d\t%d\n" % (item.sample, offset))
        yield from pieces
        offset += sum(map(len, pieces))


def _split_record(data: bytes, offset: int) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Encode a record that begins at `offset`: it is cut where it contains the magic number, which is left out.

    Returns the bytes, and the places of the content's parts: joined with the magic number they are the content.
    """
    pieces: list[bytes] = []
    parts: list[tuple[int, int]] = []
    begin = cuts = 0
    while True:
        cut = data.find(_RECORDIO_MAGIC, begin)
        while cut >= 0 and cut % 4:
            cut = data.find(_RECORDIO_MAGIC, cut + 1)
        end = len(data) if cut < 0 else cut
        flag = (3 if begin else 0) if cut < 0 else 2 if begin else 1
        pieces += (_RECORDIO_MAGIC, struct.pack("<I", flag << 29 | end - begin), data[begin:end])
        if end >= _IMAGE_HEADER.size:
            start = max(begin, _IMAGE_HEADER.size)
            # The header of each part takes the place of 4 bytes, but for the first.
            parts.append((offset + 8 + start + 4 * cuts, end - start))
        if cut < 0:
            pieces.append(bytes(-len(data) % 4))
            return pieces, parts
        begin, cuts = cut + 4, cuts + 1


# -- LMDB ----------------------------------------------------------------------------------------------------------

_MAP_FACTOR, _MAP_SPARE_BYTES = 8, 2**30
"""Size of the map by that of the files: address space, so that there is room for images that grow when they are encoded
again. It is a part of the database."""


def _encode_lmdb(members: Iterable[ArchiveMember], log: Log) -> Iterator[bytes]:
    """Yield a database that Caffe's data layer reads: a `Datum` with the encoded image and its class by number.

    It is written to a temporary file: pages refer to each other. In one transaction, the same records give the same
    bytes.
    """
    import lmdb

    size = _MAP_FACTOR * log.listed + _MAP_SPARE_BYTES
    # A file without a name: nothing of it is left if this process is killed.
    with tempfile.TemporaryFile() as file:
        path = f"/proc/self/fd/{file.fileno()}"
        with (
            lmdb.open(path, subdir=False, map_size=size, lock=False, sync=False, metasync=False) as database,
            database.begin(write=True) as transaction,
        ):
            for member in members:
                item, content = member.item, _whole_content(member)
                log.samples += 1
                number = item.number or 0
                transaction.put(b"%010d" % item.sample, _datum(content, number), append=True)
                log.add(item.key, member.size, crc32c(content), id=item.sample, label=number)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _datum(content: bytes, label: int) -> bytes:
    """Return a `caffe.Datum` with an encoded image: fields `data`, `label`, `encoded`."""
    return b"".join((b"\x22", _encode_varint(len(content)), content, b"\x28", _encode_varint(label), b"\x38\x01"))


def _whole_content(member: ArchiveMember) -> bytes:
    assert isinstance(member.content, bytes)  # only tar takes chunks
    return member.content


_ENCODERS: dict[PackFormat, Callable[[Iterable[ArchiveMember], Log], Iterator[bytes]]] = {
    PackFormat.webdataset: _encode_webdataset,
    PackFormat.tfrecord: _encode_tfrecord,
    PackFormat.recordio: _encode_recordio,
    PackFormat.lmdb: _encode_lmdb,
}
