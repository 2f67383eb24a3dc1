"""Choice of a server for each call: weighted power of two choices by measured latency.

Two servers are sampled, each with a probability proportional to its weight, the inverse of its latency; of the two, the
one with the least outstanding work (calls × latency) gets the call. Sampling by weight keeps servers of different speed
stable, which sampling evenly does not: A. Mukhopadhyay and R. Mazumdar, "Analysis of randomized
join-the-shortest-queue (JSQ) schemes in large heterogeneous processor-sharing systems", IEEE Transactions on Control of
Network Systems 3(2), 2016. Two choices: M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE
Transactions on Parallel and Distributed Systems 12(10), 2001.

The latency includes waiting at the server. Servers with the same load wait in proportion to their service time, so
weights by latency give each server a share in proportion to its capacity, whatever the load. It is an exponentially
weighted average over time, and at least the age of the calls that wait for a response, so that a server that hangs gets
no further calls long before a deadline: as Finagle's "peak EWMA" (twitter.github.io/finagle/guide/Clients.html).
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from itertools import accumulate
from typing import Iterable, Mapping

AVERAGE = 5.0
"""Time constant of the average, in seconds."""
_FORGET = 60.0
"""Seconds without calls in which most of the distance to the fastest server is forgotten."""
_LEAST = 1e-6
"""Shortest latency, in seconds."""
_BACKOFF = (1.0, 30.0)
"""First and longest time that a failed server gets no calls, in seconds."""
_GOLDEN = (5**0.5 - 1) / 2
_LATE = 3
"""Calls in a row that pass their deadline, after which a server counts as failed."""


class Server:
    """Measurements of one server."""

    def __init__(self, address: str, weight: float = 0.0) -> None:
        self.address = address
        self.weight = weight
        """Weight before the first measurement; 0: unknown."""
        self.connected = False
        self.latency = 0.0
        """Average latency in seconds; 0 before the first measurement."""
        self.measured = 0.0
        """Time of the last measurement."""
        self.samples = 0
        self.calls = 0
        """Calls that have not ended."""
        self.waiting = 0
        """Calls that have had no response yet."""
        self.begun = 0.0
        """Sum of the start times of the waiting calls."""
        self.retry_at = 0.0
        """Time before which the server gets no calls."""
        self.failed = 0.0
        """Time of the last failure."""
        self.failures = 0
        """Failures since the last response; each doubles the back-off."""
        self.late = 0
        """Calls in a row that passed their deadline."""
        self.leaving = False
        """True once DNS does not name the server any more."""

    def usable(self, now: float) -> bool:
        """Return True if the server may get a call: after a failure one at a time, until it has responded."""
        return self.connected and not self.leaving and now >= self.retry_at and not (self.failures and self.waiting)


class Balancer:
    """Servers and their measurements. Times are monotonic, in seconds. Not thread-safe: callers hold a lock."""

    def __init__(self, seed: int | None = None) -> None:
        self.servers: dict[str, Server] = {}
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._sequence = self._random.random()

    # -- servers

    def update(self, weights: Mapping[str, float]) -> list[Server]:
        """Take in the addresses of the servers, with their first weights; return the servers that are new."""
        new = []
        for address, weight in weights.items():
            server = self.servers.get(address)
            if server is None:
                server = self.servers[address] = Server(address)
                new.append(server)
            server.weight, server.leaving = weight, False
        for address, server in self.servers.items():
            if address not in weights:
                server.leaving = True
        return new

    def remove_idle(self) -> list[Server]:
        """Remove the leaving servers whose calls have all ended, and return them."""
        gone = [server for server in self.servers.values() if server.leaving and not server.calls]
        for server in gone:
            del self.servers[server.address]
        return gone

    # -- calls

    def pick(self, now: float, without: Iterable[str] = ()) -> Server | None:
        """Return the server for a call; None if no server is usable. `without`: addresses that were tried already."""
        tried = set(without)
        found = [each for each in self.servers.values() if each.usable(now) and each.address not in tried]
        if len(found) < 2:
            return found[0] if found else None
        latencies = self.latencies(found, now)
        limits = list(accumulate(1.0 / each for each in latencies))
        # The first of the two by a sequence that is even over short times, too (multiples of the golden ratio, modulo
        # 1): the calls of a server come in steady intervals. Clients begin at different points.
        self._sequence = (self._sequence + _GOLDEN) % 1.0
        last = len(found) - 1
        first, second = (
            min(bisect(limits, part * limits[-1]), last) for part in (self._sequence, self._random.random())
        )
        work = [found[index].calls * latencies[index] for index in (first, second)]
        return found[first if work[0] <= work[1] else second]

    def any(self, now: float, without: Iterable[str] = ()) -> Server | None:
        """Return a server although none is usable: a connected one if there is one, else that of the next attempt."""
        tried = set(without)
        found = [each for each in self.servers.values() if not each.leaving and each.address not in tried]
        order = lambda each: (not each.connected, each.waiting, max(each.retry_at, now), self._random.random())  # noqa: E731
        return min(found, key=order, default=None)

    def latencies(self, servers: list[Server], now: float) -> list[float]:
        """Return the expected latency of each server, in seconds, relative to each other before any measurement."""
        known = [each for each in servers if each.samples]
        # A server without a measurement is as fast as its weight says, relative to the measured ones.
        weights = [each.weight for each in servers if each.weight > 0]
        usual = sum(weights) / len(weights) if weights else 1.0
        work = sum(each.latency * (each.weight or usual) for each in known) / len(known) if known else 1.0
        best = min((each.latency for each in known), default=0.0)
        found = []
        for each in servers:
            if each.samples:
                expected = each.latency
                if not each.waiting:
                    # So that a server that was slow once is tried again.
                    expected = best + (expected - best) * math.exp(-max(0.0, now - each.measured) / _FORGET)
            else:
                expected = work / (each.weight or usual)
            if each.waiting and known:
                expected = max(expected, now - each.begun / each.waiting)
            found.append(max(expected, _LEAST))
        return found

    def begin(self, server: Server, now: float) -> None:
        """Count a call that is sent to a server."""
        server.calls += 1
        server.waiting += 1
        server.begun += now

    def respond(self, server: Server, began: float, now: float, *, measure: bool = True) -> None:
        """Take in the first response to a call. `measure`: the time until it is the server's latency."""
        self._responded(server, began)
        server.failures = server.late = 0
        server.connected, server.retry_at = True, 0.0
        if not measure:
            return
        latency = max(now - began, _LEAST)
        server.samples += 1
        # First the mean of all samples, which needs no start value; then the average over time.
        share = 1.0 - math.exp(-max(0.0, now - server.measured) / AVERAGE) if server.samples > 1 else 1.0
        server.latency += max(share, 1.0 / server.samples if server.samples <= 20 else 0.0) * (latency - server.latency)
        server.measured = now

    def pass_deadline(self, server: Server, began: float, now: float) -> None:
        """Take in a call that had no response before its deadline."""
        self._responded(server, began)
        server.late += 1
        latency = now - began
        if server.samples and latency > server.latency:
            server.latency, server.measured = latency, now
        if server.late >= _LATE and began >= server.failed:
            self._fail(server, now)

    def fail(self, server: Server, began: float, now: float, *, responded: bool = False) -> None:
        """Take in a failure of the server: it gets no calls for a time, which doubles with each further failure."""
        if not responded:
            self._responded(server, began)
        if began >= server.failed:  # calls that were on their way together are one failure
            self._fail(server, now)

    def drop(self, server: Server, began: float) -> None:
        """Take in a call that ended without a response, by the client's cancellation or an error of its own."""
        self._responded(server, began)

    def end(self, server: Server) -> None:
        """Count a call that has ended."""
        server.calls -= 1

    def _responded(self, server: Server, began: float) -> None:
        server.waiting -= 1
        server.begun = server.begun - began if server.waiting else 0.0

    def _fail(self, server: Server, now: float) -> None:
        server.failures += 1
        server.failed = now
        server.late = 0
        server.samples = 0  # what comes back may be another process
        server.connected = False
        # Clients spread their attempts; never sooner than half of the time.
        pause = min(_BACKOFF[1], _BACKOFF[0] * 2.0 ** min(server.failures - 1, 10))
        server.retry_at = now + pause * self._random.uniform(0.5, 1.0)
