"""Choice of servers: a simulation of servers of different speed, without a network or a clock."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

import pytest
from avactl_client.balancer import Balancer, Server

SPEEDS = {"slow": 1.0, "middle": 2.0, "fast": 4.0}


class Simulation:
    """Servers that serve one call at a time, in the order of arrival; the slowest takes 40 ms."""

    def __init__(self, clients: int = 1, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.clients = [Balancer(seed + number) for number in range(clients)]
        self.free = dict.fromkeys(SPEEDS, 0.0)
        self.now = 0.0
        self.speed: Callable[[str, float], float] = lambda name, now: SPEEDS[name]
        for client in self.clients:
            for server in client.update(dict.fromkeys(SPEEDS, 0.0)):
                server.connected = True

    def run(self, seconds: float, load: float, *, even: bool = False) -> Counter[str]:
        """Send calls for a time, as a part of the capacity; return the calls of each server. `even`: service times."""
        counted: Counter[str] = Counter()
        ended: list[tuple[float, int, Balancer, Server, float]] = []
        rate, ends, number = load * sum(SPEEDS.values()) / 0.04, self.now + seconds, 0
        while self.now < ends:
            self.now += self.chance.expovariate(rate)
            while ended and ended[0][0] <= self.now:
                at, _, client, server, began = heapq.heappop(ended)
                client.respond(server, began, at)
                client.end(server)
            client = self.chance.choice(self.clients)
            server = client.pick(self.now) or next(iter(client.servers.values()))
            client.begin(server, self.now)
            counted[server.address] += 1
            service = 0.04 / self.speed(server.address, self.now) * (1 if even else self.chance.expovariate(1))
            self.free[server.address] = max(self.now, self.free[server.address]) + service
            number += 1
            heapq.heappush(ended, (self.free[server.address], number, client, server, self.now))
        for at, _, client, server, began in sorted(ended, key=lambda each: each[:2]):
            client.respond(server, began, at)
            client.end(server)
        return counted


def deviation(counted: Counter[str]) -> float:
    """Return the largest relative difference between share and part of the capacity."""
    return max(
        abs(counted[name] / counted.total() / (speed / sum(SPEEDS.values())) - 1) for name, speed in SPEEDS.items()
    )


@pytest.mark.parametrize("clients", [1, 8])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8, 0.95])
def test_shares_follow_the_capacity_at_any_load(load: float, clients: int) -> None:
    simulation = Simulation(clients)
    simulation.run(10, load, even=True)
    assert deviation(simulation.run(60, load, even=True)) < 0.1


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_shares_with_random_service_times(load: float) -> None:
    simulation = Simulation()
    simulation.run(10, load)
    assert deviation(simulation.run(120, load)) < 0.15


def test_a_server_that_becomes_slow_gets_fewer_calls_and_as_many_as_before_later() -> None:
    simulation = Simulation()
    before = simulation.run(30, 0.4, even=True)
    start = simulation.now
    simulation.speed = lambda name, now: SPEEDS[name] / (8 if name == "fast" and now < start + 30 else 1)
    simulation.run(5, 0.4, even=True)
    during = simulation.run(20, 0.4, even=True)
    assert during["fast"] / during.total() < before["fast"] / before.total() / 2
    simulation.run(40, 0.4, even=True)
    assert deviation(simulation.run(30, 0.4, even=True)) < 0.1


def test_first_weights_count_until_there_are_measurements() -> None:
    balancer = Balancer(1)
    for server in balancer.update({"a": 1.0, "b": 3.0, "c": 0.0}):
        server.connected = True
    a, b, c = balancer.latencies(list(balancer.servers.values()), 0.0)
    assert a == pytest.approx(3 * b)
    assert c == pytest.approx(a / 2)  # unknown: the average weight, 2
    # A server that joins is as fast as its weight says, relative to those that were measured.
    for address in "ab":
        server = balancer.servers[address]
        balancer.begin(server, 0.0)
        balancer.respond(server, 0.0, 0.3 if address == "a" else 0.1)
    balancer.update({"a": 1.0, "b": 3.0, "new": 6.0})
    balancer.servers["new"].connected = True
    found = balancer.latencies([balancer.servers[each] for each in ("a", "b", "new")], 1.0)
    assert found[2] == pytest.approx(0.05)


def test_failed_servers_get_no_calls_until_their_time_and_then_one() -> None:
    balancer = Balancer(1)
    for server in balancer.update({"a": 0.0, "b": 0.0}):
        server.connected = True
    broken = balancer.servers["a"]
    for _ in range(3):
        balancer.begin(broken, 1.0)
    for _ in range(3):  # on their way together: one failure
        balancer.fail(broken, 1.0, 2.0)
        balancer.end(broken)
    assert (broken.failures, broken.calls, broken.waiting) == (1, 0, 0)
    assert {getattr(balancer.pick(2.0 + each / 100), "address", "") for each in range(50)} == {"b"}
    pauses = []
    for _ in range(9):
        at = broken.retry_at
        broken.connected = True
        assert broken.usable(at)
        assert not broken.usable(at - 0.01)
        balancer.begin(broken, at)
        assert not broken.usable(at)  # one at a time
        balancer.fail(broken, at, at)
        balancer.end(broken)
        pauses.append(broken.retry_at - at)
    assert [1 <= pauses[0] <= 2, 2 <= pauses[1] <= 4, 15 <= pauses[-1] <= 30] == [True] * 3
    broken.connected = True
    balancer.begin(broken, 1e3)
    balancer.respond(broken, 1e3, 1e3 + 0.1)
    assert broken.usable(1e3 + 0.1)
    assert broken.failures == 0


def test_servers_that_hang_get_no_further_calls_before_any_deadline() -> None:
    balancer = Balancer(1)
    for server in balancer.update({"a": 0.0, "b": 0.0}):
        server.connected = True
        for _ in range(20):
            balancer.begin(server, 0.0)
            balancer.respond(server, 0.0, 0.01)
            balancer.end(server)
    balancer.begin(balancer.servers["a"], 1.0)
    found = Counter(getattr(balancer.pick(11.0), "address", "") for _ in range(2000))
    assert found["a"] < 20


def test_three_passed_deadlines_are_a_failure() -> None:
    balancer = Balancer(1)
    (server,) = balancer.update({"a": 0.0})
    server.connected = True
    for number in range(3):
        assert server.failures == 0
        balancer.begin(server, float(number))
        balancer.pass_deadline(server, float(number), number + 0.5)
        balancer.end(server)
    assert server.failures == 1


def test_servers_leave_when_their_calls_have_ended() -> None:
    balancer = Balancer(1)
    for server in balancer.update({"a": 0.0, "b": 0.0}):
        server.connected = True
    leaving = balancer.servers["a"]
    balancer.begin(leaving, 0.0)
    assert balancer.update({"b": 0.0}) == []
    assert {getattr(balancer.pick(0.0), "address", "") for _ in range(20)} == {"b"}
    assert balancer.remove_idle() == []
    balancer.respond(leaving, 0.0, 1.0)
    balancer.end(leaving)
    assert balancer.remove_idle() == [leaving]
    assert list(balancer.servers) == ["b"]
