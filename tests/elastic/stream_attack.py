"""A hostile client of the job master that begins large messages on many streams and ends none of them.

gRPC's own client sends whole messages only, so this one speaks HTTP/2 itself (RFC 9113), with headers that are not
compressed (RFC 7541, 6.2.2).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import Counter

from avactl_worker import messages as m

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_MAX_FRAME_BYTES = 16_384
_FIRST_WINDOW_BYTES = 65_535


def _literal(name: str, value: str) -> bytes:
    # Shorter than 127 bytes, so each length is one byte.
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


_REQUEST = b"".join(
    _literal(name, value)
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": m.SESSION,
        ":authority": "master",
        "content-type": "application/grpc",
        "te": "trailers",
    }.items()
)


class HostileConnection:
    """One connection, with streams that each announce a message of `size` bytes and send all of it but the last."""

    def __init__(self, port: int, streams: int, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._received = b""
        self._first_window, self._window = _FIRST_WINDOW_BYTES, _FIRST_WINDOW_BYTES
        self._more = Counter[int]()
        """Bytes by which the server has opened the window of a stream."""
        self._waiting = dict.fromkeys(range(1, 2 * streams, 2), struct.pack(">BI", 0, size) + bytes(size - 1))
        self._sent = Counter[int]()
        self.ended: dict[int, bytes] = {}
        """Streams that the server has ended, with the headers that say why."""
        self.closed = False
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        for stream in self._waiting:
            self._send(_frame(_HEADERS, 4, stream, _REQUEST))

    def turn(self) -> int:
        """Read what the server says, and send what its windows allow. Returns the number of bytes sent."""
        self._read()
        sent = 0
        for stream, message in self._waiting.items():
            while stream not in self.ended and not self.closed:
                room = min(self._window, self._first_window + self._more[stream] - self._sent[stream])
                piece = message[self._sent[stream] :][: min(room, _MAX_FRAME_BYTES)] if room > 0 else b""
                if not piece or not self._send(_frame(_DATA, 0, stream, piece)):
                    break
                self._sent[stream] += len(piece)
                self._window -= len(piece)
                sent += len(piece)
                self._read()
        return sent

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, frames: bytes) -> bool:
        try:
            self._socket.sendall(frames)
        except OSError:
            self.closed = True
        return not self.closed

    def _read(self) -> None:
        while not self.closed and select.select([self._socket], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                piece = self._socket.recv(65_536)
                if piece:
                    self._received += piece
                    self._handle_frames()
                    continue
            self.closed = True

    def _handle_frames(self) -> None:
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream = self._received[3], self._received[4], int.from_bytes(self._received[5:9], "big")
            content, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            if kind == _SETTINGS and not flags & 1:
                for setting, value in struct.iter_unpack(">HI", content):
                    if setting == 4:
                        self._first_window = value
                self._send(_frame(_SETTINGS, 1, 0, b""))
            elif kind == _PING and not flags & 1:
                self._send(_frame(_PING, 1, 0, content))
            elif kind == _WINDOW:
                if stream:
                    self._more[stream] += int.from_bytes(content, "big")
                else:
                    self._window += int.from_bytes(content, "big")
            elif kind == _RESET or (kind == _HEADERS and flags & 1):
                self.ended.setdefault(stream, content)
            elif kind == _GOAWAY:
                self.closed = True


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def fill(connections: list[HostileConnection], quiet_s: float) -> int:
    """Send until the server takes nothing more for some seconds. Returns the number of bytes that it has taken."""
    total, last = 0, time.monotonic()
    while time.monotonic() - last < quiet_s:
        sent = sum(connection.turn() for connection in connections)
        total += sent
        if sent:
            last = time.monotonic()
        else:
            time.sleep(0.02)
    return total
