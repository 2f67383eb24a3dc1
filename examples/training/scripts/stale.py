"""Training with a parameter server that updates at once; the job master's clock keeps the workers together."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import avactl_worker
import linear
import numpy as np
import wire

STEPS = 60


def serve(host: str, port: int) -> None:
    """Hold the weights, and update them with each gradient that arrives."""
    weights, lock = np.zeros(linear.FEATURES), threading.Lock()

    def follow(peer: wire.socket.socket) -> None:
        with suppress(ConnectionError):  # the worker has ended
            while True:
                with lock:
                    current = weights.copy()
                wire.send(peer, current)
                gradient = wire.receive(peer)
                with lock:
                    np.subtract(weights, linear.RATE / linear.RECORDS * gradient, out=weights)

    with wire.listen(host, port) as server:
        while True:  # until the job ends the pod
            threading.Thread(target=follow, args=(server.accept()[0],), daemon=True).start()


def train(index: int, host: str, port: int, workers: int) -> None:
    """Compute gradients of a part of the data, at most `staleness` steps ahead of the slowest worker."""
    features, targets = linear.data(index, workers)
    peer = wire.connect(host, port)
    clock = avactl_worker.connect().clock()
    while clock.step < STEPS:
        step = clock.tick()
        weights = wire.receive(peer)
        gradient, _ = linear.gradient(weights, features, targets)
        wire.send(peer, gradient)
        if step % 20 == 0:
            loss = linear.gradient(weights, *linear.data())[1] / linear.RECORDS
            print(f"step {step} loss {loss:.6f}", flush=True)


def main() -> None:
    role, index, port = os.environ["AVACTL_ROLE"], int(os.environ["AVACTL_INDEX"]), int(os.environ["AVACTL_PORT"])
    host, *_ = os.environ["AVACTL_SERVER_HOSTS"].split(",")
    if role == "server":
        serve(host, port)
    else:
        train(index, host, port, int(os.environ["AVACTL_WORKERS"]))


if __name__ == "__main__":
    main()
