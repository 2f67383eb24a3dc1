"""Messages between workers and parameter servers: a JSON object, and bytes of arrays behind it.

Both sides receive into memory that they keep or hand on, so an array is copied once at most.

With a token, connections are encrypted by TLS with keys that are agreed on anew, and without certificates; a proof by
the token holds for one connection only, because it is about the messages that agreed on its keys (RFC 5929,
tls-unique). Two connections of somebody between the peers have different keys, so no proof can be handed on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
import time
from typing import Any, Sequence

from avactl_worker.ps.errors import ServerError

PROTOCOL = 3
PORT = 29500
_CIPHERS = "AECDH-AES256-SHA:@SECLEVEL=0"
"""OpenSSL has no anonymous ciphers on its levels from 1, because they authenticate nobody: the proofs do."""
MAX_HEAD, MAX_BODY = 1 << 16, 1 << 30
"""Bytes."""
_VIEWS = 512
"""Parts of a message in one system call, of which Linux takes 1,024."""
_PREFIX = struct.Struct("<IQ")


def token() -> bytes:
    """Return the token of the job, $AVACTL_PS_TOKEN; it may be empty."""
    return os.environ.get("AVACTL_PS_TOKEN", "").encode()


def encrypted(peer: socket.socket, server: bool) -> ssl.SSLSocket:
    """Return a connection in place of `peer`, which is encrypted after `do_handshake`.

    Raises OSError, and ServerError if OpenSSL lacks the ciphers.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 has neither
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.options |= ssl.OP_NO_TICKET  # a connection that goes on with old keys could have an old `tls-unique`
        context.set_ciphers(_CIPHERS)
    except (ssl.SSLError, ValueError) as error:
        raise ServerError(f"AVACTL_PS_TOKEN needs OpenSSL with the cipher {_CIPHERS.split(':')[0]}: {error}") from None
    return context.wrap_socket(peer, server_side=server, do_handshake_on_connect=False)


def proof(side: str, peer: ssl.SSLSocket) -> str:
    """Return what shows on an encrypted connection that `side`, "client" or "server", has the token."""
    binding = peer.get_channel_binding("tls-unique")
    if not binding:  # a proof would hold for other connections, too
        raise ServerError("the connection has no `tls-unique`")
    return hmac.new(token(), side.encode() + binding, hashlib.sha256).hexdigest()


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
    _send_all(peer, [memoryview(_PREFIX.pack(len(raw), size) + raw), *views])


def _send_all(peer: socket.socket, views: list[memoryview]) -> None:
    if isinstance(peer, ssl.SSLSocket):
        for each in views:
            peer.sendall(each)
        return
    while views:
        count = peer.sendmsg(views[:_VIEWS])
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


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
    # One system call, and one wait for the interpreter's lock, for all of it; TLS has no such flag.
    flags = 0 if isinstance(peer, ssl.SSLSocket) else socket.MSG_WAITALL
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the peer did not say in time who it is")
            peer.settimeout(left)
        count = peer.recv_into(view, 0, flags)
        if not count:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]
