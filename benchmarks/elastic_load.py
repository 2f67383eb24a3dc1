"""Load of `benchmarks.elastic`: workers that get a task, report it, and get the next one, in one process.

    python benchmarks/elastic_load.py avactl|dlrover HOST:PORT --workers 1000 --seconds 10 [--rate 4000]

Each worker has a connection of its own. Without `--rate` it asks again at once; with it, the workers together ask so
often, at times that do not depend on the answers. For DLRover it runs in DLRover's environment, and sends what its
client sends. Prints a line when all are connected, and one of JSON: steps per second, percentiles of their latency in
ms, and the CPU time of this process per step in µs.

A thousand clients of the gRPC library in one process take longer than the master's own work, and what is measured is
then the load. So the frames of HTTP/2 are written and read here: https://httpwg.org/specs/rfc9113.html
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

TASKS = 1_000_000
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END, _ACK, _END_HEADERS = 1, 1, 4
_MOST = 2**31 - 1
_PREFIX = struct.Struct(">BI")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _headers(path: str) -> bytes:
    """Return the headers of a call, as fields that no table remembers."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    return (
        b"\x83\x86"  # POST, http
        + (b"\x04" + text(path) + b"\x01" + text("localhost"))
        + (b"\x0f\x10" + text("application/grpc") + b"\x00" + text("te") + text("trailers"))
    )


class Connection:
    """One worker's connection: calls `answered` with each message, and `ended` at the end of a call."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = -1
        self._read = b""
        settings = struct.pack(">HI", 4, _MOST)  # no flow control of what is received
        window = struct.pack(">I", _MOST - 65_535)
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(8, 0, 0, window))
        self.messages: list[bytes] = []
        self.ended = False

    def call(self, headers: bytes, message: bytes, last: bool) -> None:
        """Begin a call with a message."""
        self._stream += 2
        self.ended = False
        self.socket.sendall(_frame(_HEADERS, _END_HEADERS, self._stream, headers) + self._data(message, last))

    def send(self, message: bytes) -> None:
        """Send another message of the last call."""
        self.socket.sendall(self._data(message, False))

    def _data(self, message: bytes, last: bool) -> bytes:
        return _frame(_DATA, _END if last else 0, self._stream, _PREFIX.pack(0, len(message)) + message)

    def receive(self) -> None:
        """Read what has come into `messages` and `ended`."""
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("the master has closed the connection")
        data = self._read + data if self._read else data
        at, end = 0, len(data)
        while end - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if end - at < 9 + size:
                break
            kind, flags = data[at + 3], data[at + 4]
            at += 9
            if kind == _DATA:
                # An answer is small: one frame.
                if size:
                    compressed, length = _PREFIX.unpack_from(data, at)
                    assert (compressed, length) == (0, size - 5), "an answer in several frames"
                    self.messages.append(data[at + 5 : at + size])
            elif kind == _HEADERS:
                self.ended = bool(flags & _END)
            elif kind == _SETTINGS and not flags & _ACK:
                self.socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self.socket.sendall(_frame(_PING, _ACK, 0, data[at : at + size]))
            elif kind in (_RST, _GOAWAY):
                raise ConnectionError(f"frame {kind} of the master: {data[at : at + size]!r}")
            at += size
        self._read = data[at:]

    def wait(self, call: bool) -> bytes:
        """Return the next message, at the end of its call if `call`."""
        while not self.messages or (call and not self.ended):
            self.receive()
        return self.messages.pop()


class Avactl:
    """One round trip over the worker's stream: the report of a task, and the next one."""

    def __init__(self, connection: Connection, number: int) -> None:
        from avactl_worker import messages as m

        self._m, self.connection, self._number = m, connection, number
        self._done: Any = None
        self._id = 0

    def _request(self, **content: Any) -> list[bytes]:
        self._id += 1
        return self._m.Request(id=self._id, **content).messages()

    def _send(self, **content: Any) -> None:
        for message in self._request(**content):
            self.connection.send(message)

    def _answer(self, raw: bytes) -> Any:
        answer = self._m.Answer.decode(raw)
        assert answer.error is None, answer.error
        return answer

    def open(self) -> None:
        """Join, and register the dataset."""
        m, connection = self._m, self.connection
        [join] = self._request(join=m.Join(worker=f"w{self._number}", incarnation=self._number + 1))
        connection.call(_headers(m.SESSION), join, last=False)
        self._answer(connection.wait(call=False))
        definition = m.Definition(counts=[TASKS * 10], records_per_task=10, epochs=1000, shuffled=True, seed=1)
        self._send(register=m.Registration(name="train", digest=b"d" * 32, definition=definition))
        self._answer(connection.wait(call=False))

    def begin(self) -> None:
        """Report and ask."""
        m = self._m
        finished = [m.Report(task=self._done)] if self._done is not None else []
        self._send(work=m.Work(datasets=["train"], finished=finished, wait=True))

    def advance(self) -> bool:
        """Read what has come; return True if the step is over."""
        self.connection.receive()
        if not self.connection.messages:
            return False
        self._done = self._answer(self.connection.messages.pop()).assignment.task
        return True


class Dlrover:
    """Two calls, as DLRover's MasterClient makes them: get_task and report_task_result."""

    def __init__(self, connection: Connection, number: int) -> None:
        from dlrover.proto import elastic_training_pb2 as pb  # type: ignore[import-not-found]
        from dlrover.python.common import comm  # type: ignore[import-not-found]

        self._pb, self._comm, self.connection, self._number = pb, comm, connection, number
        self._got = False

    def _message(self, content: Any) -> bytes:
        message = self._pb.Message(node_id=self._number, node_type="worker", data=content.serialize())
        encoded: bytes = message.SerializeToString()
        return encoded

    def _call(self, method: str, content: Any) -> None:
        self.connection.call(_headers(f"/elastic.Master/{method}"), self._message(content), last=True)

    def open(self) -> None:
        """Register the dataset."""
        if self._number == 0:
            about = self._comm.DatasetShardParams(
                batch_size=10,
                num_epochs=1,
                dataset_size=TASKS * 10,
                shuffle=False,
                num_minibatches_per_shard=1,
                dataset_name="train",
                task_type=self._pb.TRAINING,
                storage_type="table",
            )
            self._call("report", about)
            self.connection.wait(call=True)

    def begin(self) -> None:
        """Ask."""
        self._got = False
        self._call("get", self._comm.TaskRequest("train"))

    def advance(self) -> bool:
        """Read what has come; return True if the step is over."""
        connection = self.connection
        connection.receive()
        if not connection.ended:
            return False
        assert connection.messages, "a call failed in the master"
        raw = connection.messages.pop()
        if self._got:
            return True
        task = self._comm.deserialize_message(self._pb.Message.FromString(raw).data)
        assert task.task_id >= 0, "no task"
        assert task.shard.end > task.shard.start, task
        self._got = True
        self._call("report", self._comm.TaskResult("train", task.task_id))
        return False


def run(kind: str, address: str, workers: int, seconds: float, rate: float) -> dict[str, float]:
    """Return steps per second and latencies."""
    host, _, port = address.rpartition(":")
    clients, poll = {}, select.epoll()
    make: Callable[[Connection, int], Any] = Avactl if kind == "avactl" else Dlrover
    for number in range(workers):
        connection = Connection((host, int(port)))
        client = clients[connection.socket.fileno()] = make(connection, number)
        client.open()
        poll.register(connection.socket.fileno(), select.EPOLLIN)
    print("connected", flush=True)
    began = time.perf_counter()
    end = began + seconds
    spent = time.process_time()
    latencies: list[float] = []
    starts: dict[int, float] = {}
    due = [(began + random.random() * workers / rate if rate else began, each) for each in clients]
    heapq.heapify(due)
    while due or starts:
        now = time.perf_counter()
        while due and due[0][0] <= now:
            start, each = heapq.heappop(due)
            if start < end:
                starts[each] = start if rate else time.perf_counter()
                clients[each].begin()
        pause = min(max(0.0, due[0][0] - now), 1.0) if due else 1.0
        for each, _ in poll.poll(pause):
            if each not in starts:
                clients[each].connection.receive()  # a ping
            elif clients[each].advance():
                now = time.perf_counter()
                start = starts.pop(each)
                latencies.append(now - start)
                following = start + workers / rate if rate else now
                if following < end:
                    heapq.heappush(due, (following, each))
    took = time.perf_counter() - began
    spent = time.process_time() - spent
    latencies.sort()
    return {
        "steps": len(latencies),
        "rate": len(latencies) / took,
        "p50": 1000 * latencies[len(latencies) // 2],
        "p99": 1000 * latencies[len(latencies) * 99 // 100],
        "cpu": 1e6 * spent / len(latencies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("avactl", "dlrover"))
    parser.add_argument("address")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    found = run(options.kind, options.address, options.workers, options.seconds, options.rate)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
