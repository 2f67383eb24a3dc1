"""Parameter servers and their clients."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from avactl_worker import connect as join
from avactl_worker import ps
from avactl_worker.ps import frames
from avactl_worker.ps.hashing import Index, initial, mixed, owners, seed_of
from avactl_worker.ps.server import Server

from tools.controlplane.process import free_port
from tools.elastic import ElasticJob, environment
from tools.waiting import wait_until

MEMORY = 1 << 28


@contextmanager
def running(count: int, memory: int = MEMORY) -> Iterator[list[str]]:
    """Run servers in threads; yields their addresses."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=Server(memory).serve, args=(listener,), daemon=True).start()
            found.append(f"127.0.0.1:{listener.getsockname()[1]}")
        yield found


def greeted(address: str, name: str = "x") -> socket.socket:
    """Return a connection to a server that has said who it is."""
    host, port = address.split(":")
    peer = socket.create_connection((host, int(port)), timeout=30)
    assert frames.receive_head(peer)[0] == {"protocol": frames.PROTOCOL, "token": False}
    frames.send(peer, {"client": name})
    assert "error" not in frames.receive_head(peer)[0]
    return peer


def asked(peer: socket.socket, head: dict[str, Any], *body: Any) -> dict[str, Any]:
    """Return the object of a server's answer to a request."""
    frames.send(peer, head, body)
    answer, size = frames.receive_head(peer)
    frames.receive_into(peer, bytearray(size))
    return answer


def push(step: int, number: int, worker: str, parts: list[Any], **more: Any) -> dict[str, Any]:
    """Return a request of a synchronous step."""
    head = {"do": "push", "step": step, "number": number, "sync": True, "worker": worker, "parts": parts}
    return {**head, "weight": 1, "scale": 1, **more}


def together(*work: Callable[[], None]) -> None:
    """Run functions in threads; raises what one of them raises."""
    errors: list[BaseException] = []

    def run(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_index_is_a_dict() -> None:
    rng, index, known = np.random.default_rng(1), Index(), dict[int, int]()
    for _ in range(200):
        ids = np.unique(rng.integers(0, 2**64, 100, dtype=np.uint64) >> np.uint64(rng.integers(0, 64)))
        rows = index.find(ids)
        assert rows.tolist() == [known.get(each, -1) for each in ids.tolist()]
        new = ids[rows < 0]
        known.update(zip(new.tolist(), index.add(new).tolist(), strict=True))
    assert len(index) == len(known) > 3000
    assert index.ids().tolist() == list(known)
    assert sorted(known.values()) == list(range(len(known)))


def test_another_server_takes_only_its_share() -> None:
    before, after = owners(4), owners(5)
    assert set(after[before != after]) == {4}
    assert np.bincount(after).max() < 1.2 * len(after) / 5


def test_first_values_follow_from_seed_and_id() -> None:
    ids = np.arange(10_000, dtype=np.uint64)
    salt = seed_of("t", 1)
    values = initial("normal", 2.0, salt, ids, 7)
    assert (values[5:6] == initial("normal", 2.0, salt, ids[5:6], 7)).all()
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 2.0) < 0.05
    assert not (values == initial("normal", 2.0, seed_of("t", 2), ids, 7)).any()
    even = initial("uniform", 0.5, salt, ids, 3)
    assert (even.min() < -0.49, even.max() > 0.49, abs(even.mean()) < 0.01) == (True, True, True)


def test_ids_are_asked_for_once_and_their_gradients_merged() -> None:
    with running(3) as addresses, ps.connect(addresses) as servers:
        table = servers.table("e", 4, ps.SGD(1.0))
        rows = table.pull([[7, -1], [7, 2**62]])
        assert (rows.ids.shape, rows.values.shape, rows.index.shape) == ((3,), (3, 4), (2, 2))
        table.push(rows, np.ones((2, 2, 4)))
        servers.flush()
        after = table.pull(np.array([7, -1, 2**62, 5]))
        assert after.values[after.index][:, 0].tolist() == [-2.0, -1.0, -1.0, 0.0]
        found = {
            int(each): row.tolist() for ids, values in table.items() for each, row in zip(ids, values, strict=True)
        }
        assert found == {7: [-2.0] * 4, 2**64 - 1: [-1.0] * 4, 2**62: [-1.0] * 4}


def _plain(kind: str, gradients: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return weights from zero after gradients, by the formulas of the papers in float64."""
    w, a, b = np.zeros((3, 4))
    for step, g in enumerate(gradients, 1):
        if kind == "SGD":
            w = w - 0.1 * g
        elif kind == "Momentum":
            a = 0.9 * a + g
            w = w - 0.1 * a
        elif kind == "AdaGrad":
            a = a + g**2
            w = w - 0.1 * g / np.sqrt(a)
        elif kind == "Adam":
            a, b = 0.9 * a + 0.1 * g, 0.999 * b + 0.001 * g**2
            w = w - 0.1 * (a / (1 - 0.9**step)) / (np.sqrt(b / (1 - 0.999**step)) + 1e-8)
        else:
            sigma = (np.sqrt(b + g**2) - np.sqrt(b)) / 0.1
            a, b = a + g - sigma * w, b + g**2
            w = np.where(abs(a) <= 0.5, 0, -(a - np.sign(a) * 0.5) / ((1 + np.sqrt(b)) / 0.1 + 0.2))
    return w


@pytest.mark.parametrize(
    "optimizer", [ps.SGD(0.1), ps.Momentum(0.1), ps.AdaGrad(0.1), ps.Adam(0.1), ps.FTRL(0.1, 1.0, 0.5, 0.2)]
)
def test_optimizers(optimizer: Any) -> None:
    gradients = list(np.random.default_rng(3).normal(size=(30, 4)))
    with running(1) as addresses, ps.connect(addresses) as servers:
        table = servers.table("w", 4, optimizer)
        for gradient in gradients:
            table.push(table.pull([9]), gradient[None])
            servers.flush()
        found = table.pull([9]).values[0]
    assert np.allclose(found, _plain(type(optimizer).__name__, gradients), rtol=1e-4, atol=1e-6)


def test_dense_parameters_begin_with_those_of_worker_0(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(2) as addresses:
        monkeypatch.setenv("AVACTL_INDEX", "1")
        with ps.connect(addresses, patience=0.2) as late, pytest.raises(ps.ServerError, match="worker 0"):
            late.dense("mlp", {"w": np.ones((50, 60)), "b": np.ones(3)}, ps.SGD(1.0))
        monkeypatch.setenv("AVACTL_INDEX", "0")
        start: dict[str, Any] = {
            "w": np.random.default_rng(1).normal(size=(50, 60)).astype(np.float32),
            "b": np.ones(3),
        }
        with ps.connect(addresses) as first, ps.connect(addresses) as second:
            mlp = first.dense("mlp", start, ps.SGD(1.0))
            other = second.dense("mlp", {"w": np.zeros((50, 60)), "b": np.zeros(3)}, ps.SGD(1.0))
            assert (other.pull()["w"] == start["w"]).all()
            mlp.pull()
            mlp.push({"w": np.full((50, 60), 2.0), "b": np.zeros(3)})
            first.flush()
            assert (other.pull()["w"] == start["w"] - np.float32(2)).all()
            assert (other.pull()["b"] == 1).all()


def test_a_push_whose_answer_is_lost_counts_once() -> None:
    with running(1) as addresses, ps.connect(addresses) as servers:
        table = servers.table("counts", 1, ps.SGD(1.0))
        rng = random.Random(2)
        for _ in range(50):
            table.push(table.pull([3]), [[-1.0]])
            peer = servers._links[0]._peer
            assert peer is not None
            if rng.random() < 0.5:
                peer.shutdown(socket.SHUT_RD)  # the server gets the push, and its answer is lost
            servers.flush()
        assert table.pull([3]).values.tolist() == [[50.0]]


def test_a_server_that_was_started_again_is_refused(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "avactl_worker.ps", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, env=environment())
    try:
        with ps.connect([f"127.0.0.1:{port}"]) as servers:
            table = servers.table("e", 4, ps.SGD(1.0))
            process.kill()
            process.wait()
            process = subprocess.Popen(command, env=environment())
            with pytest.raises(ps.ServerError, match="has lost its parameters"):
                table.pull([1])
    finally:
        process.kill()
        process.wait()


def test_what_does_not_fit_is_refused() -> None:
    with running(1, memory=1 << 20) as addresses, ps.connect(addresses) as servers:
        table = servers.table("e", 64, ps.SGD(1.0))
        rows = table.pull(np.arange(10_000))  # takes no memory on the server
        table.push(rows, np.ones_like(rows.values))
        with pytest.raises(ps.ServerError, match="more servers"):
            servers.flush()
        with pytest.raises(ps.ServerError, match="another dim"):
            servers.table("e", 32, ps.SGD(1.0))
        with pytest.raises(TypeError, match="integers"):
            table.pull([0.5])


def test_bytes_of_others() -> None:
    rng = random.Random(5)
    with running(1) as addresses, ps.connect(addresses) as servers:
        table = servers.table("e", 2, ps.SGD(1.0))
        host, port = addresses[0].split(":")
        heads: list[dict[str, Any]] = [
            {"do": "pull", "step": 0, "parts": [["e", 1 << 50]]},
            {"do": "pull", "step": -1, "parts": []},
            {"do": "pull", "step": 0, "parts": [["e", 1, 2], 7]},
            {"do": "push", "step": 0, "number": 1, "parts": [["e", 1]], "worker": "", "weight": 1, "scale": 1e400},
            {"do": "set", "parts": []},
            {"do": "export", "name": ["e"], "start": 0, "step": 0},
            {"do": "declare", "table": {"name": "../" * 99}},
            {"do": []},
            {},
        ]
        for head in heads:
            with greeted(addresses[0]) as peer:
                frames.send(peer, head)
                assert "error" in frames.receive_head(peer)[0], head
        for _ in range(20):
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(rng.randbytes(rng.randrange(200)))
        assert table.pull([1]).values.tolist() == [[0.0, 0.0]]


def test_a_worker_without_the_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    command = [sys.executable, "-m", "avactl_worker.ps", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, env={**environment(), "AVACTL_PS_TOKEN": "secret"}) as process:
        try:
            with ps.connect([f"127.0.0.1:{port}"]) as stranger, pytest.raises(ps.ServerError, match="AVACTL_PS_TOKEN"):
                stranger.table("e", 2, ps.SGD(1.0))
            monkeypatch.setenv("AVACTL_PS_TOKEN", "secret")
            with ps.connect([f"127.0.0.1:{port}"]) as servers:
                servers.table("e", 2, ps.SGD(1.0))
        finally:
            process.kill()


FEATURES, RECORDS, WORKERS, STEPS = 40, 300, 3, 25


def _part(index: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    features = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    targets = features @ rng.normal(size=FEATURES).astype(np.float32)
    return features[index::WORKERS], targets[index::WORKERS]


def _gradient(weights: Any, index: int) -> Any:
    features, targets = _part(index)
    return 2 * features.T @ (features @ weights - targets) / np.float32(len(targets))


def test_synchronous_steps_equal_the_plain_script_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_CONSISTENCY", "ssp")
    monkeypatch.setenv("AVACTL_STALENESS", "0")
    options = ("--staleness", "0", "--workers", str(WORKERS))
    found: list[Any] = []
    with ElasticJob(tmp_path, 0, 1, 1, options=options) as job, running(2) as addresses:

        def train(index: int) -> None:
            chance = random.Random(index)
            time.sleep(chance.random() * 0.3)
            with join(job.address, f"worker-{index}") as master, ps.connect(addresses, master) as servers:
                model = servers.dense("w", np.zeros(FEATURES), ps.SGD(0.05))
                servers.weight = float(len(_part(index)[1]))
                for _ in servers.steps(STEPS):
                    weights = model.pull()
                    time.sleep(chance.random() * 0.01)
                    model.push(_gradient(weights, index))
                found.append(model.pull())

        together(*(lambda index=index: train(index) for index in range(WORKERS)))
    weights = np.zeros(FEATURES, dtype=np.float32)
    sizes = [np.float32(len(_part(index)[1])) for index in range(WORKERS)]
    for _ in range(STEPS):
        total = np.zeros(FEATURES, dtype=np.float32)
        for index in range(WORKERS):
            total += sizes[index] * _gradient(weights, index)
        weights -= np.float32(0.05) * (total / np.float32(sum(sizes)))
    assert len(found) == WORKERS
    for each in found:
        assert each.tobytes() == weights.tobytes()


def test_steps_with_a_backup_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_CONSISTENCY", "bsp")
    with ElasticJob(tmp_path, 0, 1, 1, options=("--gradients", "2")) as job, running(2) as addresses:

        def train(index: int) -> None:
            with join(job.address, f"worker-{index}") as master, ps.connect(addresses, master) as servers:
                table = servers.table("counts", 1, ps.SGD(1.0))
                for step in servers.steps(STEPS):
                    rows = table.pull(np.arange(10))
                    assert (rows.values >= step - 1).all()  # all steps before are in, and no other one twice
                    table.push(rows, -np.ones((10, 1)))
                assert (table.pull(np.arange(10)).values == STEPS).all()

        together(*(lambda index=index: train(index) for index in range(WORKERS)))


def test_asynchronous_steps_converge() -> None:
    with running(2) as addresses:

        def train(index: int) -> None:
            with ps.connect(addresses) as servers:
                model = servers.dense("w", np.zeros(FEATURES), ps.SGD(0.02))
                for _ in servers.steps(150):
                    model.push(_gradient(model.pull(), index))

        together(*(lambda index=index: train(index) for index in range(WORKERS)))
        with ps.connect(addresses) as servers:
            weights = servers.dense("w", np.zeros(FEATURES), ps.SGD(0.02)).pull()
    for index in range(WORKERS):
        features, targets = _part(index)
        assert np.abs(features @ weights - targets).max() < 0.05 * np.abs(targets).max()


def test_a_job_without_a_master_is_not_synchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AVACTL_MASTER", raising=False)
    monkeypatch.setenv("AVACTL_CONSISTENCY", "bsp")
    with pytest.raises(ps.ServerError, match="staleness: 0"):
        ps.connect(["127.0.0.1:1"])


def test_silent_connections_hold_up_nobody() -> None:
    with running(1) as addresses, ExitStack() as stack:
        host, port = addresses[0].split(":")
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port))))
        with ps.connect(addresses) as servers:
            table = servers.table("e", 2, ps.SGD(1.0))
            wait_until(lambda: table.pull([1]).values.shape == (1, 2), "an answer")


@contextmanager
def process(*before: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server in a process of its own, behind a command; yields its address and the process."""
    address = f"127.0.0.1:{free_port()}"
    command = [*before, sys.executable, "-m", "avactl_worker.ps", "--listen", address]
    with subprocess.Popen(command, env={**environment(), **variables}) as found:
        try:
            yield address, found
        finally:
            found.kill()


def test_more_connections_than_files_do_not_end_a_server() -> None:
    few = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with process(*few) as (address, server), ps.connect([address]) as servers, ExitStack() as stack:
        table = servers.table("e", 2, ps.SGD(1.0))
        host, port = address.split(":")
        for _ in range(200):
            stack.enter_context(socket.create_connection((host, int(port))))
        with ps.connect([address]) as others:  # while the others are there, silent
            assert others.table("e", 2, ps.SGD(1.0)).pull([1]).values.shape == (1, 2)
        assert table.pull([1]).values.shape == (1, 2)
        assert server.poll() is None


def test_errors_of_the_system_do_not_end_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener:
        """Fails as accept(2) does, and then hands a connection on."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.errors = [
                ConnectionAbortedError(103, "aborted"),
                OSError(24, "too many files"),
                OSError(105, "memory"),
            ]

        def accept(self) -> Any:
            if self.errors:
                raise self.errors.pop(0)
            return self.real.accept()

        def fileno(self) -> int:
            return self.real.fileno()

    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def started(thread: threading.Thread) -> None:
        if failures and "_serve" in thread.name:
            raise failures.pop()
        start(thread)

    with socket.create_server(("127.0.0.1", 0)) as real:
        served: Any = Server(MEMORY).serve
        threading.Thread(target=served, args=(Listener(real),), name="listening", daemon=True).start()
        monkeypatch.setattr(threading.Thread, "start", started)
        with ps.connect([f"127.0.0.1:{real.getsockname()[1]}"]) as servers:
            assert servers.table("e", 2, ps.SGD(1.0)).pull([1]).values.shape == (1, 2)
    assert not failures


def test_a_listener_that_is_closed_ends_serving() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.close()
    Server(MEMORY).serve(listener)


@pytest.mark.parametrize("token", ["", "secret"])
def test_every_connection_gives_its_place_back(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PS_TOKEN", token)
    server = Server(MEMORY)
    before = server._places._value
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
        wrong: list[Any] = ["\ud800", None, [], {}, 7, "0" * 65]
        for bad in wrong:
            for field in ("client", "proof"):
                with socket.create_connection(listener.getsockname()) as plain:
                    frames.receive_head(plain)
                    peer: socket.socket = plain
                    if token:
                        peer = encrypted = frames.encrypted(plain, server=False)
                        encrypted.do_handshake()
                    with peer:
                        frames.send(peer, {"client": "x", "proof": "x", field: bad})
            with socket.create_connection(listener.getsockname()) as plain:
                frames.receive_head(plain)
                plain.sendall(bytes(20))  # no handshake
        wait_until(lambda: server._places._value == before and not server._strangers, "all places")


def test_a_peer_that_says_slowly_who_it_is_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avactl_worker.ps.server._GREETING", 0.5)
    with running(1) as addresses:
        host, port = addresses[0].split(":")
        with socket.create_connection((host, int(port))) as peer:
            frames.receive_head(peer)
            peer.settimeout(0.2)
            peer.sendall(struct.pack("<IQ", 60_000, 0))

            def ended() -> bool:
                try:
                    peer.sendall(b" ")  # never silent for as long as the limit
                    return not peer.recv(1)
                except TimeoutError:
                    return False
                except OSError:
                    return True

            wait_until(ended, "the end of the connection")


@contextmanager
def serving_once(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Call a function with each connection, in a thread; yields the address."""

    def run(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve_one, args=(peer,), daemon=True).start()

    def serve_one(peer: socket.socket) -> None:
        with suppress(OSError):
            serve(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=run, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _refused(address: str) -> None:
    with ps.connect([address]) as servers, pytest.raises(ps.ServerError, match="AVACTL_PS_TOKEN"):
        servers.table("e", 2, ps.SGD(1.0))


@pytest.mark.parametrize("answer", [{}, {"proof": ""}, {"proof": "\ud800"}, {"proof": "00" * 32}])
def test_a_server_without_the_token_is_refused(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PS_TOKEN", "secret")

    def plain(peer: socket.socket) -> None:
        frames.send(peer, {"protocol": frames.PROTOCOL, "token": False})
        frames.receive_head(peer)

    def pretend(peer: socket.socket) -> None:
        frames.send(peer, {"protocol": frames.PROTOCOL, "token": True})
        encrypted = frames.encrypted(peer, server=True)
        encrypted.do_handshake()
        frames.receive_head(encrypted)
        frames.send(encrypted, {"lineage": "x", **answer})

    for each in (plain, pretend):
        with serving_once(each) as address:
            _refused(address)


def test_a_proof_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PS_TOKEN", "secret")
    answers: list[Any] = []
    with running(1) as addresses:
        host, port = addresses[0].split(":")

        def between(peer: socket.socket) -> None:
            with socket.create_connection((host, int(port))) as server:
                frames.send(peer, frames.receive_head(server)[0])
                to_client, to_server = frames.encrypted(peer, server=True), frames.encrypted(server, server=False)
                to_client.do_handshake()
                to_server.do_handshake()
                frames.send(to_server, frames.receive_head(to_client)[0])  # the proof of a worker with the token
                answers.append(frames.receive_head(to_server)[0])
                frames.send(to_client, answers[-1])

        with serving_once(between) as address:
            _refused(address)
        assert answers == [{"error": "AVACTL_PS_TOKEN is another one here"}]


def test_what_passes_between_is_neither_read_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PS_TOKEN", "secret")
    seen, change, changed = bytearray(), threading.Event(), []
    with running(1) as addresses:
        host, port = addresses[0].split(":")

        def between(peer: socket.socket) -> None:
            server = socket.create_connection((host, int(port)))

            def copy(source: socket.socket, target: socket.socket) -> None:
                with source, target:
                    try:
                        while chunk := bytearray(source.recv(1 << 16)):
                            seen.extend(chunk)
                            if change.is_set() and source is peer and len(chunk) > 1000:
                                chunk[-100] ^= 1
                                change.clear()
                                changed.append(True)
                            target.sendall(chunk)
                    except OSError:
                        pass

            threading.Thread(target=copy, args=(server, peer), daemon=True).start()
            copy(peer, server)

        gradient = np.full((1, 1000), 1.25, dtype=np.float32)
        with serving_once(between) as address, ps.connect([address]) as servers:
            table = servers.table("embedding", 1000, ps.SGD(1.0))
            for _ in range(3):
                table.push(table.pull([1]), gradient)
                servers.flush()
                change.set()  # the worker sends the next push again, and it counts once
            assert table.pull([1]).values.tolist() == [[-3.75] * 1000]
        assert changed == [True, True]
        assert b"embedding" not in seen
        assert gradient.tobytes()[:40] not in seen


def test_strangers_in_a_handshake_are_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_PS_TOKEN", "secret")
    monkeypatch.setattr("avactl_worker.ps.server._STRANGERS", 4)
    with running(1) as addresses, ExitStack() as stack:
        host, port = addresses[0].split(":")
        peers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(12)]
        peers[0].settimeout(5)  # far below the time for a greeting
        frames.receive_head(peers[0])
        assert peers[0].recv(1) == b""
        with ps.connect(addresses) as servers:
            assert servers.table("e", 2, ps.SGD(1.0)).pull([1]).values.shape == (1, 2)


def test_kept_gradients_are_memory() -> None:
    values = np.ones((1000, 64), dtype=np.float32)
    ids = np.arange(1000, dtype=np.uint64)
    with running(1, memory=4 << 20) as addresses, ps.connect(addresses) as servers, greeted(addresses[0]) as peer:
        table = servers.table("e", 64, ps.SGD(1.0))
        table.push(table.pull(ids), values)
        servers.flush()
        answers = [asked(peer, push(1, n, f"worker-{n}", [["e", 1000]]), ids, values) for n in range(1, 40)]
        assert ["error" in each for each in answers[:3]] == [False] * 3
        assert "more memory" in answers[-1]["error"]
        small = np.ones((0, 64), dtype=np.float32)
        for number in range(100, 200):  # a worker that was started again replaces its own
            assert asked(peer, push(1, number, "worker-1", [["e", 0]]), ids[:0], small) == {"late": False}
        assert asked(peer, push(1, 200, "worker-1", [["e", 1000]]), ids, values) == {"late": False}
        asked(peer, {"do": "pull", "step": 2, "parts": []})  # merged, so there is room again
        for number in range(201, 204):
            assert asked(peer, push(2, number, f"worker-{number}", [["e", 1000]]), ids, values) == {"late": False}


def test_parts_of_a_request_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BODY", 1 << 20)
    with running(1) as addresses, ps.connect(addresses) as servers, greeted(addresses[0]) as peer:
        for number in range(8):
            servers.table(f"t{number}", 65_536, ps.SGD(1.0))
        ids = np.zeros(8, dtype=np.uint64)
        parts = [[f"t{number}", 1] for number in range(8)]
        assert "too long" in asked(peer, {"do": "pull", "step": 0, "parts": parts}, ids)["error"]
        assert asked(peer, {"do": "pull", "step": 0, "parts": parts[:4]}, ids[:4]) == {}
        assert "once" in asked(peer, {"do": "pull", "step": 0, "parts": parts[:1] * 2}, ids[:2])["error"]


def test_a_step_that_is_far_ahead_is_not_believed() -> None:
    ids, values = np.zeros(1, dtype=np.uint64), np.ones((1, 1), dtype=np.float32)
    with running(1) as addresses, ps.connect(addresses) as servers, greeted(addresses[0]) as peer:
        servers.table("e", 1, ps.SGD(1.0))
        for head in ({"do": "pull", "parts": []}, {"do": "export", "name": "e", "start": 0}):
            assert "far ahead" in asked(peer, {**head, "step": 2**53})["error"]
        assert "far ahead" in asked(peer, push(2**53, 1, "w", [["e", 1]]), ids, values)["error"]
        assert asked(peer, push(1_000_000, 2, "w", [["e", 1]]), ids, values) == {"late": False}


def _unmixed(values: Any) -> Any:
    """Return what `mixed` makes these values of."""

    def undone(found: Any, bits: int) -> Any:
        result = found
        for _ in range(64 // bits + 1):
            result = found ^ (result >> np.uint64(bits))
        return result

    found = undone(values, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
    found = undone(found, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
    return undone(found, 30) - np.uint64(0x9E3779B97F4A7C15)


def test_nobody_can_choose_ids_that_share_a_place() -> None:
    values = np.arange(4000, dtype=np.uint64) << np.uint64(32)
    ids = _unmixed(values)
    assert (mixed(ids) == values).all()
    index = Index()
    index.add(ids)
    assert index.find(ids).tolist() == list(range(4000))
    free = np.flatnonzero(index._rows < 0)
    assert np.diff(free, prepend=-1).max() < 500  # places in a row; 4000 without a salt
