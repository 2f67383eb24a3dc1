"""Readers of the formats, written from their specifications and not from avactl's writers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb

_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE.append(_crc)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit in a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def tfrecords(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets and records of a TFRecord file, with their checksums checked."""
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        record = data[offset + 12 : offset + 12 + length]
        assert len(record) == length
        for place, covered in ((offset + 8, data[offset : offset + 8]), (offset + 12 + length, record)):
            (masked,) = struct.unpack_from("<I", data, place)
            rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc32c(covered)
        yield offset, record
        offset += length + 16


def recordio(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets and records of a RecordIO file; parts are joined by the magic number that separated them."""
    offset = begin = 0
    parts: list[bytes] = []
    while offset < len(data):
        magic, lrec = struct.unpack_from("<II", data, offset)
        assert magic == 0xCED7230A
        flag, length = lrec >> 29, lrec & (1 << 29) - 1
        if flag in (0, 1):
            assert not parts
            begin = offset
        parts.append(data[offset + 8 : offset + 8 + length])
        assert len(parts[-1]) == length
        offset += 8 + length + -length % 4
        if flag in (0, 3):
            yield begin, struct.pack("<I", 0xCED7230A).join(parts)
            parts = []
    assert not parts


def caffe(directory: Path) -> dict[bytes, tuple[bytes, int]]:
    """Contents and labels of a database of Caffe's `Datum` messages, by their keys."""
    found = {}
    with lmdb.open(str(directory), readonly=True, lock=False) as database, database.begin() as transaction:
        for key, value in transaction.cursor():
            fields: dict[int, int | bytes] = {}
            at = 0
            while at < len(value):
                tag, at = _varint(value, at)
                number, at = _varint(value, at)
                if tag & 7 == 2:
                    fields[tag >> 3], at = value[at : at + number], at + number
                else:
                    fields[tag >> 3] = number
            assert fields.keys() == {4, 5, 7}
            assert fields[7] == 1
            content, label = fields[4], fields[5]
            assert isinstance(content, bytes)
            assert isinstance(label, int)
            found[bytes(key)] = content, label
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
