"""Messages of the health check: JSON objects behind their length, within bounds that a stranger's bytes cannot exceed.

The side that accepts a connection speaks first. A worker that reaches another program there, such as the rendezvous of
a training that runs already, sends it nothing.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from typing import Any, Dict

VERSION = 1
GREETING = {"avactl-health-check": VERSION}
MAX_BYTES = 16_384
"""Longest message."""
_MAX_UNSENT = 1 << 20
"""Bytes for a peer that does not read."""
_LENGTH = struct.Struct("!I")

Message = Dict[str, Any]


class ProtocolError(ValueError):
    """The bytes are not a message of the health check."""


class SilenceError(ProtocolError):
    """No message has come in time."""


class Channel:
    """A connection that carries messages, without blocking. Methods raise OSError when it is lost."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket, self._in, self._out = connection, bytearray(), bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """True while bytes wait to be sent by `flush`."""
        return bool(self._out)

    def send(self, message: Message) -> None:
        """Send a message, or as much of it as the network takes now."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_BYTES or len(self._out) > _MAX_UNSENT:
            raise ProtocolError(f"a message of {len(data)} bytes, {len(self._out)} bytes not read")
        self._out += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send what the network takes now."""
        while self._out:
            try:
                del self._out[: self._socket.send(self._out)]
            except BlockingIOError:
                return

    def fill(self) -> bool:
        """Read what has arrived; False at the end of the connection."""
        try:
            data = self._socket.recv(MAX_BYTES)
        except BlockingIOError:
            return True
        self._in += data
        return bool(data)

    def next(self) -> Message | None:
        """Return the next message that has arrived, or None. Raises ProtocolError."""
        if len(self._in) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._in)
        if size > MAX_BYTES:
            raise ProtocolError(f"a message of {size} bytes")
        if len(self._in) < _LENGTH.size + size:
            return None
        data = bytes(self._in[_LENGTH.size : _LENGTH.size + size])
        del self._in[: _LENGTH.size + size]
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ProtocolError("no object")
        return found

    def wait(self, seconds: float) -> Message:
        """Return the next message. Raises SilenceError, ProtocolError, and EOFError at the end of the connection."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            found = self.next()
            if found is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise SilenceError(f"no message for {seconds:g} s")
            if not self.fill():
                raise EOFError("the connection was closed")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def dial(host: str, port: int, patience: float) -> Channel:
    """Connect to a worker in the check, and return the connection when it has greeted.

    Raises OSError if there is none, ProtocolError or EOFError if another program listens there.
    """
    connection = socket.create_connection((host, port), timeout=patience)
    channel = Channel(connection)
    try:
        greeting = channel.wait(patience)
        if greeting != GREETING:
            raise ProtocolError(f"another version: {str(greeting)[:80]}")
    except BaseException:
        channel.close()
        raise
    return channel


def listen(address: str, port: int) -> socket.socket:
    """Listen on an address of this pod, IPv4 or IPv6. Raises OSError."""
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind)
    try:
        # Connections of the check that was here before may still be in TIME_WAIT.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(1024)
    except OSError:
        found.close()
        raise
    return found


def free_port(address: str) -> tuple[str, int]:
    """Return the address and a port of it that is free now."""
    with contextlib.closing(listen(address, 0)) as found:
        return address, int(found.getsockname()[1])
