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
                gradient = wire.receive(peer)  # empty: the worker only reads the weights
                with lock:
                    if len(gradient):
                        np.subtract(weights, linear.RATE / linear.RECORDS * gradient, out=weights)
                    current = weights.copy()
                wire.send(peer, current)

    with wire.listen(host, port) as server:
        while True:  # until the job ends the pod
            threading.Thread(target=follow, args=(server.accept()[0],), daemon=True).start()


def train(index: int, host: str, port: int, workers: int) -> None:
    """Compute gradients of random records, as far ahead of other workers as the clock allows."""
    features, targets = linear.data()
    random = np.random.default_rng(index)
    peer = wire.connect(host, port)
    clock = avactl_worker.connect().clock()
    while clock.tick() <= STEPS:
        wire.send(peer, np.empty(0))
        weights = wire.receive(peer)
        chosen = random.choice(linear.RECORDS, linear.RECORDS // workers, replace=False)
        gradient, _ = linear.gradient(weights, features[chosen], targets[chosen])
        if clock.counts():  # always, without backup workers
            wire.send(peer, gradient)
            wire.receive(peer)  # it has arrived
        if clock.step % 20 == 0:
            loss = linear.gradient(weights, features, targets)[1] / linear.RECORDS
            print(f"step {clock.step} loss {loss:.6f}", flush=True)


def main() -> None:
    role, index, port = os.environ["AVACTL_ROLE"], int(os.environ["AVACTL_INDEX"]), int(os.environ["AVACTL_PORT"])
    host, *_ = os.environ["AVACTL_SERVER_HOSTS"].split(",")
    if role == "server":
        serve(host, port)
    else:
        train(index, host, port, int(os.environ["AVACTL_WORKERS"]))


if __name__ == "__main__":
    main()
