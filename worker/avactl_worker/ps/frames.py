"""Messages between workers and parameter servers: a JSON object, and bytes of arrays behind it.

Both sides receive into memory that they keep or hand on, so an array is copied once at most.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from typing import Any, Sequence

from avactl_worker.ps.errors import ServerError

PROTOCOL = 2
PORT = 29500
NONCE = 32
"""Random bytes of each side, so that no proof serves twice."""
MAX_HEAD, MAX_BODY = 1 << 16, 1 << 30
"""Bytes."""
_PREFIX = struct.Struct("<IQ")


def proof(side: str, server: bytes, client: bytes) -> str:
    """Return what shows that `side` knows the job's token, $AVACTL_PS_TOKEN, which may be empty.

    `server`, `client`: the random bytes of both. That of one side does not serve for the other.
    """
    token = os.environ.get("AVACTL_PS_TOKEN", "").encode()
    return hmac.new(token, side.encode() + server + client, hashlib.sha256).hexdigest()


def is_proof(found: Any, expected: str) -> bool:
    """Return True if what a peer sent is the proof."""
    return hmac.compare_digest(str(found).encode(errors="replace"), expected.encode())


def send(peer: socket.socket, head: dict[str, Any], body: Sequence[Any] = ()) -> None:
    """Send a message. Raises OSError, and ServerError for a message that is too long."""
    raw = json.dumps(head).encode()
    views = [memoryview(each).cast("B") for each in body if len(each)]
    size = sum(map(len, views))
    if len(raw) > MAX_HEAD or size > MAX_BODY:
        raise ServerError(f"a message of {size} bytes and {len(raw)} bytes of names is too long: push or pull less")
    peer.sendall(_PREFIX.pack(len(raw), size) + raw)
    for each in views:
        peer.sendall(each)


def receive_head(
    peer: socket.socket, most: int = MAX_BODY, deadline: float | None = None
) -> tuple[dict[str, Any], int]:
    """Return the object of a message, and the number of bytes behind it. Raises OSError, ServerError."""
    prefix = bytearray(_PREFIX.size)
    receive_into(peer, prefix, deadline)
    length, size = _PREFIX.unpack(prefix)
    if length > MAX_HEAD or size > most:
        raise ServerError("a message is too long")
    raw = bytearray(length)
    receive_into(peer, raw, deadline)
    try:
        head = json.loads(raw)
    except (ValueError, RecursionError):
        raise ServerError("a message is not JSON") from None
    if not isinstance(head, dict):
        raise ServerError("a message is not a JSON object")
    return head, size


def receive_into(peer: socket.socket, buffer: Any, deadline: float | None = None) -> None:
    """Fill a buffer. Raises OSError, also if the connection ends before, or at the deadline, by `time.monotonic`."""
    view = memoryview(buffer).cast("B")
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the peer did not say in time who it is")
            peer.settimeout(left)
        count = peer.recv_into(view)
        if not count:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]
