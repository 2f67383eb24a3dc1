"""The format of checkpoint files: written from the beginning to the end, and known to be complete by its end.

    magic (16 bytes), then, little-endian: length of the index (4 bytes), length of the file (8)
    index: JSON with `step`, `pickled` (bytes) and `buffers` (bytes each)
    the pickled state, and the buffers, each at a multiple of 64 bytes
    CRC-32 of all bytes before (4 bytes), and the end mark (8 bytes)

Reading unpickles the state, so a checkpoint must come from a source whose code you would run.
"""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from typing import Any, BinaryIO, Iterable, Iterator

from avactl_worker.checkpoint.errors import TornError
from avactl_worker.checkpoint.snapshot import Snapshot, aligned

_MAGIC = b"avactl-checkpt 1"
_HEAD = struct.Struct("<16sIQ")
_TAIL = struct.Struct("<I8s")
_COMPLETE = b"complete"
_CHUNK = 16 << 20
"""Bytes that are written or read at once: a thread holds the GIL for none of them."""
_LONGEST_INDEX = 64 << 20


def chunks(step: int, snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """Yield a file in pieces."""
    sizes = [buffer.nbytes for buffer in snapshot.buffers]
    index = json.dumps({"step": step, "pickled": len(snapshot.pickled), "buffers": sizes}).encode()
    length = _length(len(index), len(snapshot.pickled), sizes)
    checksum = 0
    for piece in _pieces(_HEAD.pack(_MAGIC, len(index), length), index, snapshot):
        checksum = zlib.crc32(piece, checksum)
        yield piece
    yield _TAIL.pack(checksum, _COMPLETE)


def _pieces(head: bytes, index: bytes, snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    written = len(head) + len(index) + len(snapshot.pickled)
    yield head + index
    yield snapshot.pickled
    for buffer in snapshot.buffers:
        yield bytes(aligned(written) - written)
        for start in range(0, buffer.nbytes, _CHUNK):
            yield buffer[start : start + _CHUNK]
        written = aligned(written) + buffer.nbytes


def _length(index: int, pickled: int, sizes: Iterable[int]) -> int:
    end = _HEAD.size + index + pickled
    for size in sizes:
        end = aligned(end) + size
    return end + _TAIL.size


def read(file: BinaryIO, size: int) -> tuple[int, Any]:
    """Return the step and the state of a file of `size` bytes. Raises TornError unless it is complete."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise TornError("it does not begin as checkpoints of avactl-worker do")
    _, index_length, length = _HEAD.unpack(head)
    if length != size:
        raise TornError(f"it has {size:,} bytes, but says {length:,}")
    if index_length > min(_LONGEST_INDEX, size):
        raise TornError("its index is longer than the file")
    whole = bytearray(size)
    whole[: _HEAD.size] = head
    view = memoryview(whole)
    _read_into(file, view[_HEAD.size :])
    checksum, mark = _TAIL.unpack_from(whole, size - _TAIL.size)
    body = view[: -_TAIL.size]
    found = 0
    for start in range(0, len(body), _CHUNK):
        found = zlib.crc32(body[start : start + _CHUNK], found)
    if mark != _COMPLETE or found != checksum:
        raise TornError("its checksum does not match")
    # From here on the file is what was written.
    at = _HEAD.size + index_length
    index = json.loads(bytes(view[_HEAD.size : at]))
    pickled = view[at : at + index["pickled"]]
    at += index["pickled"]
    buffers = []
    for each in index["buffers"]:
        at = aligned(at)
        buffers.append(view[at : at + each])
        at += each
    return index["step"], pickle.loads(pickled, buffers=buffers)  # noqa: S301 - the job's own file


def _read_into(file: BinaryIO, view: memoryview) -> None:
    done = 0
    while done < len(view):
        piece = file.read(min(_CHUNK, len(view) - done))
        if not piece:
            raise TornError("it ends early")
        view[done : done + len(piece)] = piece
        done += len(piece)
