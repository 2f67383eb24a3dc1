"""Arrays over TCP."""

from __future__ import annotations

import errno
import socket
import time

import numpy as np

PATIENCE = 60.0
"""Seconds to wait for a peer that has not started yet."""


def listen(host: str, port: int) -> socket.socket:
    """Listen on this pod's own address: on one machine, others use the same port on theirs."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_server((host, port))
        except OSError as error:
            # DNS may not know this pod yet, or still have the address of the one before it.
            unknown = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            if not unknown or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def connect(host: str, port: int) -> socket.socket:
    """Connect to a peer, which may start later."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:  # DNS may not know it yet, either
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def send(peer: socket.socket, values: np.ndarray) -> None:
    peer.sendall(len(values).to_bytes(4, "big") + values.astype("<f8").tobytes())


def receive(peer: socket.socket) -> np.ndarray:
    """The next array. Raises ConnectionError if the peer has gone."""
    count = int.from_bytes(_exactly(peer, 4), "big")
    return np.frombuffer(_exactly(peer, 8 * count), "<f8").copy()


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer has closed the connection")
        data += part
    return data
