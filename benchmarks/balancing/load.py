"""Requests at random times to servers of different speed, of which one is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import avactl_client
import grpc

from benchmarks.balancing.server import METHOD

SPEEDS = (1, 2, 4)
KILLED = 1
"""Index of the server that is killed: without it, the others can still serve all requests."""
_PATIENCE = 60.0
"""Deadline of a request, in seconds."""


class Request(NamedTuple):
    """A request; times in seconds since the first one was due."""

    due: float
    ended: float
    server: str
    """Address of the server; empty if the request failed."""

    @property
    def latency(self) -> float:
        """Seconds from when it was due, so that a client that is late counts, too."""
        return self.ended - self.due


@dataclass
class Schedule:
    """What happens when, in seconds since the start."""

    begin: float
    """Begin of the measurement; before it, the client learns."""
    kill: float
    end: float
    rate: float
    """Requests a second."""


@dataclass
class Result:
    """The requests of one run."""

    addresses: list[str]
    killed: str
    requests: list[Request] = field(default_factory=list)

    def shares(self, schedule: Schedule) -> list[float]:
        """Return the part of the requests of each server, from the begin of the measurement until one is killed."""
        counted = [each.server for each in self.requests if schedule.begin <= each.due < schedule.kill]
        return [counted.count(address) / len(counted) for address in self.addresses]

    def deviation(self, schedule: Schedule) -> float:
        """Return the largest relative difference between a server's share and its part of the capacity."""
        parts = zip(self.shares(schedule), SPEEDS, strict=True)
        return max(abs(share / (speed / sum(SPEEDS)) - 1) for share, speed in parts)

    def failed(self) -> list[Request]:
        """Return the failed requests."""
        return [each for each in self.requests if not each.server]

    def failed_after_detection(self) -> int:
        """Return how many requests failed that began after the first failure had reached the client."""
        failed = self.failed()
        detected = min((each.ended for each in failed), default=float("inf"))
        return sum(each.due > detected for each in failed)

    def latency(self, part: float, begin: float, end: float) -> float:
        """Return a quantile of the latency of the requests of a time. A failed request counts with its time, too."""
        found = sorted(each.latency for each in self.requests if begin <= each.due < end)
        return found[min(len(found) - 1, int(part * len(found)))]


class Servers:
    """One process for each speed."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: time of one request on the slowest server."""
        self._processes: list[subprocess.Popen[str]] = []
        self.addresses: list[str] = []
        for speed in SPEEDS:
            command = [sys.executable, "-m", "benchmarks.balancing.server", "127.0.0.1:0", str(seconds / speed)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            assert process.stdout is not None
            self.addresses.append(f"127.0.0.1:{int(process.stdout.readline())}")

    def kill(self, index: int) -> None:
        """Kill a server with SIGKILL."""
        self._processes[index].kill()
        self._processes[index].wait()

    def close(self) -> None:
        """Kill all servers."""
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def servers(seconds: float) -> Iterator[Servers]:
    """Start servers, and kill them at the end."""
    found = Servers(seconds)
    try:
        yield found
    finally:
        found.close()


def balanced(addresses: Sequence[str]) -> Any:
    """Return a channel of avactl_client, without first weights."""
    return avactl_client.channel("benchmark:1", addresses=lambda: list(addresses), weights="")


def round_robin(addresses: Sequence[str]) -> Any:
    """Return a channel of gRPC's own policy `round_robin`."""
    config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    return grpc.insecure_channel(f"ipv4:{','.join(addresses)}", options=(("grpc.service_config", config),))


def run(connect: Callable[[Sequence[str]], Any], schedule: Schedule, seconds: float, seed: int = 1) -> Result:
    """Send requests, kill a server on the way, and return all requests. Each run has the same times of requests."""
    chance = random.Random(seed)
    with servers(seconds) as started, connect(started.addresses) as channel:
        result = Result(list(started.addresses), started.addresses[KILLED])
        method = channel.unary_unary(METHOD)
        method(b"", timeout=_PATIENCE, wait_for_ready=True)
        began = time.monotonic()
        killer = threading.Timer(schedule.kill, started.kill, (KILLED,))
        killer.start()
        left = threading.Semaphore(0)
        due, count = 0.0, 0
        while due < schedule.end:
            time.sleep(max(0.0, began + due - time.monotonic()))
            _send(method, began, due, result, left)
            due, count = due + chance.expovariate(schedule.rate), count + 1
        for _ in range(count):
            left.acquire()
        killer.join()
    return result


def _send(method: Any, began: float, due: float, result: Result, left: threading.Semaphore) -> None:
    call = method.future(b"x", timeout=_PATIENCE)

    def ended(done: Any) -> None:
        server = f"127.0.0.1:{done.result().decode()}" if done.code() is grpc.StatusCode.OK else ""
        result.requests.append(Request(due, time.monotonic() - began, server))
        left.release()

    call.add_done_callback(ended)
