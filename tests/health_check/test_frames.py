"""Messages between workers, and bytes that are none."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from avactl_worker.health_check.frames import MAX_BYTES, Channel, ProtocolError, SilenceError, dial, listen

from tools.waiting import patience

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        yield channel, theirs
    channel.close()


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    channel, theirs = pair
    other = Channel(theirs)
    messages = [{"state": "x" * size} for size in (0, 5, 16_000)]
    for message in messages:
        other.send(message)
    assert [channel.wait(patience()) for _ in messages] == messages
    other.close()
    with pytest.raises(EOFError):
        channel.wait(patience())


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("!I", MAX_BYTES + 1),
        struct.pack("!I", 10_000) + b"[" * 10_000,
        struct.pack("!I", 2) + b"[]",
        struct.pack("!I", 2) + b"\xff\xfe",
    ],
)
def test_other_bytes_are_refused_at_once(pair: Pair, data: bytes) -> None:
    channel, theirs = pair
    theirs.sendall(data)
    with pytest.raises(ProtocolError) as refused:
        channel.wait(patience())
    assert not isinstance(refused.value, SilenceError)


def test_a_message_that_does_not_end_is_given_up(pair: Pair) -> None:
    channel, theirs = pair
    theirs.sendall(struct.pack("!I", 100) + b"{")
    with pytest.raises(SilenceError):
        channel.wait(0.01)


def test_a_peer_that_does_not_read_is_given_up(pair: Pair) -> None:
    channel, _ = pair

    def send_on() -> None:
        for _ in range(100_000):
            channel.send({"state": "x" * 1_000})

    with pytest.raises(ProtocolError):
        send_on()


def test_a_program_that_does_not_greet_gets_nothing() -> None:
    with listen("127.0.0.1", 0) as other:
        with pytest.raises(SilenceError):
            dial("127.0.0.1", other.getsockname()[1], 0.2)
        connection, _ = other.accept()
        with connection:
            assert connection.recv(1) == b""
