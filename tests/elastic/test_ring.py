"""Links between workers of a round, in threads: sums, broadcasts, strangers, and ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from avactl_worker import messages as m
from avactl_worker import ring, state
from avactl_worker.ring import Finished, Ring, Round, RoundEnded
from avactl_worker.step import _flattened

from tools.elastic import environment
from tools.waiting import patience

PATIENCE = patience()


def rounds(size: int, listeners: list[socket.socket], token: bytes = b"t" * 16) -> list[Round]:
    places = [
        m.Round(
            revision=1,
            rank=rank,
            size=size,
            token=token,
            next=ring.address_of(listeners[(rank + 1) % size]),
            after="after",
            before="before",
        )
        for rank in range(size)
    ]
    return [Round(place) for place in places]


def close(*things: Any) -> None:
    for each in things:
        each.close()


def together(size: int, run: Callable[[Ring], Any]) -> list[Any]:
    """Call a function on all members of a ring."""
    listeners = [ring.listen("127.0.0.1:1") for _ in range(size)]
    found = rounds(size, listeners)

    def work(rank: int) -> Any:
        links = Ring(found[rank], listeners[rank])
        try:
            return run(links)
        finally:
            links.close()

    try:
        with ThreadPoolExecutor(size) as threads:
            return [each.result(PATIENCE) for each in [threads.submit(work, rank) for rank in range(size)]]
    finally:
        close(*listeners, *found)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 300_000])
def test_sum(size: int, count: int) -> None:
    def run(links: Ring) -> Any:
        values = np.random.default_rng(links.rank).random(count)
        links.sum(values)
        return values

    found = together(size, run)
    expected = sum(np.random.default_rng(rank).random(count) for rank in range(size))
    assert np.allclose(found[0], expected)
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_broadcast_and_gather(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_CHUNK", 1000)
    for data in (b"", b"x" * 1000, bytes(range(256)) * 5000):

        def run(links: Ring, data: bytes = data) -> bytes:
            return links.broadcast(data if links.rank == 0 else b"", len(data))

        assert together(size, run) == [data] * size
    found = together(size, lambda links: links.gather(b"%d" % links.rank))
    assert found == [[b"%d" % rank for rank in range(size)]] * size


def test_strangers_are_not_let_in() -> None:
    """A stranger comes first, and one of an earlier round."""
    listeners = [ring.listen("127.0.0.1:1") for _ in range(2)]
    found = rounds(2, listeners)
    strangers = [socket.create_connection(listeners[0].getsockname()) for _ in range(2)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: a.very.long.name\r\n\r\n")
    strangers[1].sendall(ring._HELLO.pack(b"u" * 16, 1, 1))
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(Ring, found[rank], listeners[rank]) for rank in range(2)]
        links = [each.result(PATIENCE) for each in made]
        gathered = [threads.submit(each.gather, b"%d" % each.rank) for each in links]
        assert [each.result(PATIENCE) for each in gathered] == [[b"0", b"1"]] * 2
    close(*links, *strangers, *listeners, *found)


def test_a_peer_may_say_late_who_it_is() -> None:
    """Its process may not run for seconds. It would not notice that its connection was closed."""
    listeners = [ring.listen("127.0.0.1:1") for _ in range(2)]
    found = rounds(2, listeners)
    hello = ring._HELLO.pack(b"t" * 16, 1, 1)
    silent = [socket.create_connection(listeners[0].getsockname()) for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(Ring, found[0], listeners[0])
        late = silent[1]
        late.sendall(hello[:5])
        stranger = socket.create_connection(listeners[0].getsockname(), PATIENCE)
        stranger.sendall(bytes(len(hello)))
        try:
            assert stranger.recv(1) == b""  # it was looked at, with all that came before
            late.sendall(hello[5:])
            links = made.result(PATIENCE)
        finally:
            found[0].tell(m.Change(wanted=True, broken=not made.done(), reason="the test has failed"))
    late.sendall(b"x")
    links.exchange(b"", received := bytearray(1))
    assert received == b"x"
    assert [each.recv(1) for each in (silent[0], silent[2])] == [b"", b""]
    close(links, *silent, stranger, *listeners, *found)


def test_connections_that_say_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_STRANGERS", 2)
    listeners = [ring.listen("127.0.0.1:1") for _ in range(2)]
    found = rounds(2, listeners)
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(Ring, found[0], listeners[0])
        silent = [socket.create_connection(listeners[0].getsockname()) for _ in range(3)]
        assert silent[0].recv(1) == b""
        found[0].tell(m.Change(broken=True, reason="enough"))
        with pytest.raises(RoundEnded, match="enough"):
            made.result(PATIENCE)
    close(*silent, *listeners, *found)


@pytest.mark.parametrize(
    ("change", "error"), [(m.Change(broken=True, reason="gone"), RoundEnded), (m.Change(finished=True), Finished)]
)
def test_a_wait_ends_with_the_round(change: m.Change, error: type[BaseException]) -> None:
    """The peer keeps its connections open, and says nothing."""
    listeners = [ring.listen("127.0.0.1:1") for _ in range(2)]
    found = rounds(2, listeners)
    ended = []
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(Ring, found[rank], listeners[rank]) for rank in range(2)]
        links = [each.result(PATIENCE) for each in made]

    def wait() -> None:
        try:
            links[0].gather(b"0")
        except (RoundEnded, Finished) as why:
            ended.append(type(why))

    waiting = threading.Thread(target=wait)
    waiting.start()
    found[0].tell(change)
    waiting.join(PATIENCE)
    assert ended == [error]
    close(*links, *listeners, *found)


def test_the_library_needs_no_numpy_before_a_step() -> None:
    script = "import sys; sys.modules['numpy'] = None; import avactl_worker.master"
    subprocess.run([sys.executable, "-c", script], check=True, env=environment())


# -- values and states ------------------------------------------------------------------------------------------------


def test_values_keep_their_form() -> None:
    values = {"b": [np.ones((2, 3), np.float32), 2.5], "a": np.arange(3), "c": np.float32(4)}
    flat, restore = _flattened(values)
    assert flat.dtype == np.float64
    assert flat.tolist() == [0, 1, 2, 1, 1, 1, 1, 1, 1, 2.5, 4]
    found = restore(flat * 2)
    assert found["a"].tolist() == [0, 2, 4]
    assert found["b"][0].dtype == np.float32
    assert found["b"][0].shape == (2, 3)
    assert found["b"][1] == 5.0
    assert found["c"] == 8
    assert _flattened(np.ones(3, np.float32))[0].dtype == np.float32


def test_states_of_arrays() -> None:
    first = {"w": np.arange(6.0).reshape(2, 3), "n": np.array(7), "h": np.ones(2, np.float16)}
    second = {"h": np.zeros(2, np.float16), "n": np.array(0), "w": np.zeros((2, 3))}
    state.of(second).load(state.of(first).dump())
    assert all((first[name] == second[name]).all() for name in first)
    with pytest.raises(state.StateError, match=r"'w' of another worker's state is float64 of shape \(2, 3\), and here"):
        state.of({**second, "w": np.zeros(6)}).load(state.of(first).dump())
    with pytest.raises(state.StateError, match="has 3 arrays, and this one's 1"):
        state.of([np.zeros(1)]).load(state.of(first).dump())
    with pytest.raises(TypeError, match="state 0 is of type float"):
        state.of([1.0])
