"""Readers of the formats, written from their specifications and not from avactl's writers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
