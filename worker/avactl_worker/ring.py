"""Workers of a round in a ring: each is connected to the next one and to the one before, by TCP.

Every wait ends when the round ends, also if a peer keeps its connections open and is silent. Source of the all-reduce:
Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import select
import socket
import struct
import threading
import time
from typing import Any

from avactl_worker import messages as m

log = logging.getLogger("avactl_worker")

_HELLO = struct.Struct("<16sQQ")
"""Token, revision and rank of the worker that connects."""
_STRANGERS = 64
"""Connections that may be silent at a time; of more, the oldest is closed."""
_RESOLVE = 120.0
"""Seconds within which the master's name gets an address."""
_CHUNK = 4 * 1024 * 1024
"""Bytes."""
_REPORT = 30.0
"""Seconds after which a wait is reported."""


class RoundEnded(BaseException):
    """The round has ended: a peer is gone (`broken`), or workers join after a step."""

    def __init__(self, reason: str, broken: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.broken = reason, broken


class Finished(BaseException):
    """Synchronous training is finished."""


class Round:
    """A worker's place in a round, and what it has been told since. The watching thread writes, others read."""

    def __init__(self, place: m.Round) -> None:
        self.place = place
        self.wanted = self.finished = False
        self.broken = ""
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._lock = threading.Lock()
        self._closed = False

    def tell(self, change: m.Change) -> None:
        """Note a change. Waits of the round end if it cannot go on."""
        self.wanted = self.wanted or change.wanted
        self.finished = self.finished or change.finished
        if change.broken:
            self.broken = self.broken or change.reason
        if self.broken or self.finished:
            with self._lock:
                if not self._closed:
                    self._bell.send(b"!")

    @property
    def over(self) -> bool:
        """True if nothing more about the round is of interest."""
        return bool(self.broken) or self.finished or self._closed

    def check(self) -> None:
        """Raise Finished or RoundEnded if the round cannot go on."""
        if self.finished:
            raise Finished
        if self.broken:
            raise RoundEnded(self.broken)

    def fileno(self) -> int:
        """Return a file descriptor that can be read when the round cannot go on."""
        return self._alarm.fileno()

    def close(self) -> None:
        """Free the file descriptors."""
        with self._lock:
            self._closed = True
            self._alarm.close()
            self._bell.close()


def listen(master: str) -> socket.socket:
    """Listen at the address of this machine from which it reaches the master at HOST:PORT. Raises OSError."""
    host, _, port = master.rpartition(":")
    deadline = time.monotonic() + _RESOLVE
    while True:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
            break
        except socket.gaierror:
            # DNS does not know the pod of a master that is being made anew.
            if time.monotonic() > deadline:
                raise
            log.warning("no address of %s: waiting for it", host)
            time.sleep(1.0)
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        own = probe.getsockname()[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((own, 0))
    listener.listen(64)
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return HOST:PORT of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Ring:
    """The links of a round. All members must call the same methods in the same order. All raise RoundEnded."""

    def __init__(self, current: Round, listener: socket.socket) -> None:
        """Connect to both neighbours."""
        place = current.place
        self.rank, self.size, self.round = place.rank, place.size, current
        self._next: Any = None
        self._before: Any = None
        self.doing = "connecting"
        """For messages about long waits."""
        if self.size == 1:
            return
        try:
            self._next = self._connect(place)
            self._before = self._accept(place, listener)
        except OSError as error:
            self.close()
            raise RoundEnded(f"cannot connect to {place.after}: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    def _connect(self, place: m.Round) -> socket.socket:
        host, _, port = place.next.rpartition(":")
        host = host.strip("[]")
        peer = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = peer.connect_ex((host, int(port)))
            if code == errno.EINPROGRESS:
                self._wait((), (peer,))
                code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, errno.errorcode.get(code, str(code)))
            peer.sendall(_HELLO.pack(place.token, place.revision, place.rank))  # fits into the empty buffer
        except BaseException:
            peer.close()
            raise
        return peer

    def _accept(self, place: m.Round, listener: socket.socket) -> socket.socket:
        """Return the connection of the worker before, which may say who it is as late as it likes.

        If it were closed, that worker would not notice: it waits for the one before it.
        """
        expected = _HELLO.pack(place.token, place.revision, (place.rank - 1) % place.size)
        silent: dict[socket.socket, bytes] = {}
        try:
            while True:
                self._wait((listener, *silent), ())
                with contextlib.suppress(OSError):  # it has gone already
                    peer, _ = listener.accept()
                    peer.setblocking(False)
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    silent[peer] = b""
                for peer in list(silent):
                    hello = self._hello(peer, silent[peer])
                    if hello is None or len(silent) > _STRANGERS:
                        silent.pop(peer)
                        peer.close()
                    elif len(hello) < _HELLO.size:
                        silent[peer] = hello
                    else:
                        silent.pop(peer)
                        if hmac.compare_digest(hello, expected):
                            return peer
                        peer.close()  # of an earlier round, or not a worker of this job
        finally:
            for each in silent:
                each.close()

    @staticmethod
    def _hello(peer: socket.socket, before: bytes) -> bytes | None:
        """Return what a peer has said so far; None if it has gone."""
        try:
            part = peer.recv(_HELLO.size - len(before))
        except BlockingIOError:
            return before
        except OSError:
            return None
        return before + part if part else None

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, reading: Any, writing: Any) -> None:
        """Wait until one of the sockets is ready. Raises RoundEnded and Finished."""
        poller = select.poll()
        poller.register(self.round, select.POLLIN)
        for each in reading:
            poller.register(each, select.POLLIN)
        for each in writing:
            poller.register(each, select.POLLOUT)
        began = told = time.monotonic()
        while True:
            self.round.check()
            now = time.monotonic()
            if now - told >= _REPORT:
                told = now
                place = self.round.place
                whom = place.before if reading else place.after
                log.warning(
                    "%s: waiting for %s, or a worker that waits itself, for %.0f s", self.doing, whom, now - began
                )
            if poller.poll(1000 * _REPORT):
                self.round.check()
                return

    def wait(self, why: str) -> None:
        """Wait until there is a change. Raises Finished or RoundEnded."""
        began = told = time.monotonic()
        while not self.round.wanted:
            self.round.check()
            select.select([self.round], [], [], 0.5)  # `wanted` rings no bell
            if time.monotonic() - told >= _REPORT:
                told = time.monotonic()
                log.warning("%s for %.0f s", why, told - began)
        raise RoundEnded("workers join", broken=False)

    def exchange(self, out: Any, into: Any) -> None:
        """Send `out` to the next worker while `into` is received from the one before: buffers of bytes."""
        out, into = memoryview(out).cast("B"), memoryview(into).cast("B")
        try:
            while len(out) or len(into):
                moved = 0
                if len(out):
                    with contextlib.suppress(BlockingIOError):
                        moved = self._next.send(out[:_CHUNK])
                        out = out[moved:]
                if len(into):
                    with contextlib.suppress(BlockingIOError):
                        count = self._before.recv_into(into)
                        if not count:
                            raise ConnectionResetError(errno.ECONNRESET, "it has closed the connection")
                        into, moved = into[count:], moved + count
                if not moved:
                    self._wait((self._before,) if len(into) else (), (self._next,) if len(out) else ())
        except OSError as error:
            self.round.check()
            raise RoundEnded(f"lost a peer: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the links."""
        for each in (self._next, self._before):
            if each is not None:
                each.close()

    # -- collectives -------------------------------------------------------------------------------------------------

    def gather(self, record: bytes) -> list[bytes]:
        """Return the records of all workers, by rank. All have the same length."""
        found = [record] * self.size
        current: Any = record
        for hop in range(1, self.size):
            received = bytearray(len(record))
            self.exchange(current, received)
            found[(self.rank - hop) % self.size] = bytes(received)
            current = received
        return found

    def broadcast(self, data: bytes, length: int) -> bytes:
        """Return the `data` of rank 0, which has `length` bytes."""
        if self.rank == 0:
            if self.size > 1:
                self.exchange(data, b"")
            return data
        buffer = bytearray(length)
        view, held, last = memoryview(buffer), memoryview(b""), self.rank == self.size - 1
        for start in range(0, length, _CHUNK):
            piece = view[start : start + _CHUNK]
            self.exchange(b"" if last else held, piece)
            held = piece
        if not last:
            self.exchange(held, b"")
        return bytes(buffer)

    def sum(self, values: Any) -> None:
        """Replace the values of a contiguous NumPy array by the sums over all workers; these are alike everywhere."""
        import numpy as np

        flat = values.reshape(-1)
        bounds = [len(flat) * each // self.size for each in range(self.size + 1)]

        def part(index: int) -> Any:
            index %= self.size
            return flat[bounds[index] : bounds[index + 1]]

        for hop in range(self.size - 1):
            mine = part(self.rank - hop - 1)
            received = np.empty_like(mine)
            self.exchange(part(self.rank - hop), received)
            mine += received
        for hop in range(self.size - 1):
            self.exchange(part(self.rank + 1 - hop), part(self.rank - hop))
