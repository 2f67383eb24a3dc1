"""Pull and push of 1,000 ids × 64 floats by 8 clients to 2 parameter servers, beside plain sockets.

    python -m benchmarks.ps [--clients 8] [--servers 2] [--ids 1000] [--dim 64] [--rounds 100] [--repeats 5] [--token]

The plain servers have a thread for each connection, and send and receive as many bytes as the parameter servers do in
the same number of messages, into memory that they keep; they look at none of them. Both run in turns, on loopback, with
the same client processes. A round is one pull and one push of all of its rows. The bar is the median of the ratios of
pairs: how many times as long the parameter servers take. CPU seconds are those of all clients and servers; other load
on the machine changes them less.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import numpy as np
from avactl_worker import ps
from avactl_worker.ps import frames
from rich.table import Table

from benchmarks.measure import Bar, bar, console, cpu_seconds

ROWS = 100_000
"""Rows that the table has before."""
MOST = 2.0
"""Time of the parameter servers, in times of plain sockets."""


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _receive(peer: socket.socket, buffer: memoryview) -> None:
    view = buffer
    while view:
        count = peer.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError
        view = view[count:]


def _send(peer: socket.socket, views: list[memoryview]) -> None:
    sent = peer.sendmsg(views)
    for each in views:
        if sent < len(each):
            peer.sendall(each[sent:])
        sent = max(0, sent - len(each))


def serve_plain(listener: socket.socket, most: int, dim: int) -> None:
    """Answer each request, a number of rows and ids or ids and gradients, with as many bytes as a server does."""

    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, ids, rows = bytearray(8), memoryview(bytearray(8 * most)), memoryview(bytearray(4 * dim * most))
        while True:
            try:
                _receive(peer, memoryview(head))
                count, pushes = int.from_bytes(head[:4], "little"), head[4]
                _receive(peer, ids[: 8 * count])
                if pushes:
                    _receive(peer, rows[: 4 * dim * count])
                    peer.sendall(head)
                else:
                    peer.sendall(rows[: 4 * dim * count])
            except OSError:
                return

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


class _Plain:
    """A client of the plain servers."""

    def __init__(self, addresses: list[str], bounds: list[int], dim: int) -> None:
        self._links = []
        for address in addresses:
            host, port = address.split(":")
            peer = socket.create_connection((host, int(port)))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(peer)
        self._parts = [slice(first, last) for first, last in itertools.pairwise(bounds)]
        self._ids = np.arange(bounds[-1], dtype=np.uint64)
        self._rows = np.ones((bounds[-1], dim), dtype=np.float32)

    def round(self) -> None:
        """Make one pull and one push."""
        for pushes in (0, 1):
            for peer, part in zip(self._links, self._parts, strict=True):
                head = (part.stop - part.start).to_bytes(4, "little") + bytes([pushes, 0, 0, 0])
                views: list[Any] = [head, self._ids[part]] + [self._rows[part]] * pushes
                _send(peer, [memoryview(each).cast("B") for each in views])
            for peer, part in zip(self._links, self._parts, strict=True):
                rows: Any = self._rows[part]
                _receive(peer, memoryview(bytearray(8)) if pushes else memoryview(rows).cast("B"))


def client(
    seed: int, addresses: list[str], plain: list[str], options: argparse.Namespace, barrier: Barrier, rounds: int
) -> None:
    """Make rounds with each side in turns, as often as the parent passes the barrier."""
    servers = ps.connect(addresses)
    table = servers.table("embedding", options.dim, ps.SGD(0.01))
    ids = np.random.default_rng(seed).choice(ROWS, options.ids, replace=False)
    gradients = np.ones((options.ids, options.dim), dtype=np.float32)
    other = _Plain(plain, [int(each) for each in table.pull(ids).bounds], options.dim)

    def work() -> None:
        table.push(table.pull(ids), gradients)
        servers.flush()

    for _ in range(1 + options.repeats):
        for run in (other.round, work):
            barrier.wait()
            for _ in range(rounds):
                run()
            barrier.wait()


def _fill(addresses: list[str], dim: int) -> None:
    with ps.connect(addresses) as servers:
        table = servers.table("embedding", dim, ps.SGD(0.01))
        for part in np.array_split(np.arange(ROWS), 10):
            rows = table.pull(part)
            table.push(rows, np.ones_like(rows.values))
            servers.flush()


class Times(NamedTuple):
    """One run of one side."""

    wall: float
    cpu: float


def measured(options: argparse.Namespace) -> list[tuple[Times, Times]]:
    """Return the times of each repeat: of plain sockets, and of parameter servers."""
    if options.token:
        os.environ["AVACTL_PS_TOKEN"] = os.urandom(16).hex()
    fork = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        addresses, plain, started = [_free_address() for _ in range(options.servers)], [], []
        processes = []
        for address in addresses:
            command = [sys.executable, "-m", "avactl_worker.ps", "--listen", address]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            processes.append(process.pid)
        for _ in range(options.servers):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
            plain.append(f"127.0.0.1:{listener.getsockname()[1]}")
            started.append(fork.Process(target=serve_plain, args=(listener, options.ids, options.dim), daemon=True))
        _fill(addresses, options.dim)
        barrier = fork.Barrier(options.clients + 1)
        for seed in range(options.clients):
            arguments = (seed, addresses, plain, options, barrier, options.rounds)
            started.append(fork.Process(target=client, args=arguments, daemon=True))
        for each in started:
            each.start()
            stack.callback(each.join)
            stack.callback(each.kill)
            processes.append(each.pid or 0)
        found = []
        for _ in range(1 + options.repeats):
            times = []
            for _ in range(2):
                barrier.wait()
                began, used = time.perf_counter(), sum(map(cpu_seconds, processes))
                barrier.wait()
                wall = time.perf_counter() - began
                times.append(Times(wall, sum(map(cpu_seconds, processes)) - used))
            found.append((times[0], times[1]))
        return found[1:]  # the first one fills caches


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.ps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=8, help="client processes")
    parser.add_argument("--servers", type=int, default=2, help="server processes")
    parser.add_argument("--ids", type=int, default=1000, help="ids of a pull and of a push")
    parser.add_argument("--dim", type=int, default=64, help="floats of a row")
    parser.add_argument("--rounds", type=int, default=100, help="pulls and pushes of a repeat")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--token", action="store_true", help="encrypt the connections of the parameter servers")
    options = parser.parse_args()
    size = options.clients * options.rounds * options.ids * (2 * 8 + 2 * 4 * options.dim)
    pairs = measured(options)
    table = Table("s plain", "s avactl", "MB/s plain", "MB/s avactl", "ratio", "CPU s plain", "CPU s avactl", box=None)
    for plain, own in pairs:
        cells = [f"{plain.wall:.2f}", f"{own.wall:.2f}", f"{size / plain.wall / 1e6:.0f}"]
        cells += [f"{size / own.wall / 1e6:.0f}", f"{plain.wall / own.wall:.2f}", f"{plain.cpu:.2f}", f"{own.cpu:.2f}"]
        table.add_row(*cells)
    console.print(table)
    print(f"1-minute load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; protocol {frames.PROTOCOL}")
    ratio = statistics.median(own.wall / plain.wall for plain, own in pairs)
    bar(Bar("ps-time-to-plain-sockets", ratio, MOST, " times"))


if __name__ == "__main__":
    main()
