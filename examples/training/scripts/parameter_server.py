"""Synchronous training with parameter servers, without a framework: each server holds a part of the weights."""

from __future__ import annotations

import os

import linear
import numpy as np
import wire


def serve(index: int, servers: list[str], workers: int) -> None:
    """Hold a part of the weights, and update it when the gradients of all workers have arrived."""
    host, port = servers[index].split(":")
    weights = np.array_split(np.zeros(linear.FEATURES), len(servers))[index]
    with wire.listen(host, int(port)) as server:
        peers = [server.accept()[0] for _ in range(workers)]
        while True:  # until the job ends the pod
            for peer in peers:
                wire.send(peer, weights)
            try:
                total = sum(wire.receive(peer) for peer in peers)
            except ConnectionError:
                peers = [server.accept()[0] for _ in range(workers)]
                continue
            weights -= linear.RATE / linear.RECORDS * total


def train(index: int, servers: list[str], workers: int) -> None:
    """Compute gradients of a part of the data."""
    features, targets = linear.data(index, workers)
    peers = [wire.connect(*_address(server)) for server in servers]
    if index == 0:
        print(f"{workers} workers, {len(servers)} servers", flush=True)
    for epoch in range(linear.EPOCHS):
        weights = np.concatenate([wire.receive(peer) for peer in peers])
        own, _ = linear.gradient(weights, features, targets)
        for peer, part in zip(peers, np.array_split(own, len(servers)), strict=True):
            wire.send(peer, part)
        if index == 0:
            linear.show(epoch, linear.gradient(weights, *linear.data())[1])


def _address(server: str) -> tuple[str, int]:
    host, port = server.split(":")
    return host, int(port)


def main() -> None:
    role, index = os.environ["AVACTL_ROLE"], int(os.environ["AVACTL_INDEX"])
    servers = [f"{host}:{os.environ['AVACTL_PORT']}" for host in os.environ["AVACTL_SERVER_HOSTS"].split(",")]
    (serve if role == "server" else train)(index, servers, int(os.environ["AVACTL_WORKERS"]))


if __name__ == "__main__":
    main()
