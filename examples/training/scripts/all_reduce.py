"""Data-parallel training without a framework: the first worker sums the gradients of all.

Runs with the generic addresses of `framework: custom`, and under torchrun.
"""

from __future__ import annotations

import os
import socket

import linear
import numpy as np
import wire

RANK = int(os.environ.get("RANK", os.environ["AVACTL_INDEX"]))
SIZE = int(os.environ.get("WORLD_SIZE") or os.environ["AVACTL_WORKERS"])
ROOT, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def peers() -> list[socket.socket]:
    """Connections of the first worker to all others, or of another one to the first."""
    if RANK:
        return [wire.connect(ROOT, PORT)]
    with wire.listen(ROOT, PORT) as server:
        return [server.accept()[0] for _ in range(SIZE - 1)]


def all_reduce(connections: list[socket.socket], values: np.ndarray) -> np.ndarray:
    """Sum of the values of all workers."""
    if RANK:
        wire.send(connections[0], values)
        return wire.receive(connections[0])
    total = values + sum(wire.receive(peer) for peer in connections)
    for peer in connections:
        wire.send(peer, total)
    return total


def main() -> None:
    weights = np.zeros(linear.FEATURES)
    features, targets = linear.data(RANK, SIZE)
    connections = peers()
    if RANK == 0:
        print(f"{SIZE} workers", flush=True)
    for epoch in range(linear.EPOCHS):
        own, squared_error = linear.gradient(weights, features, targets)
        total = all_reduce(connections, np.append(own, squared_error))
        weights -= linear.RATE / linear.RECORDS * total[:-1]
        if RANK == 0:
            linear.show(epoch, total[-1])
    if RANK == 0:
        linear.save(weights)


if __name__ == "__main__":
    main()
