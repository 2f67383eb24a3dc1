"""A worker of `tools.elastic.SyncJob`: fits a small network in synchronous steps, and logs each step.

    python sync_worker.py RECORDS EPOCHS BATCH SEED PAUSE LOG

A step takes PAUSE seconds while the file $SLOW is there. The leader does not leave while the file $HOLD is there.
Each line of LOG is JSON: the worker, what it does, its time, the step, and the size of the round. "done" has a digest
of the state, "final" the loss over all records.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import avactl_worker
import numpy as np

FEATURES, HIDDEN, RATE = 8, 16, 0.1
Array = np.ndarray[Any, Any]


def dataset(records: int) -> tuple[Array, Array]:
    """Return features and noisy targets."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(records, FEATURES))
    clean = np.sin(features @ rng.normal(size=FEATURES)) + 0.5 * features[:, 0]
    return features, clean + 0.3 * rng.normal(size=records)


def initial(seed: int) -> list[Array]:
    """Return the parameters of a network with one hidden layer."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(FEATURES, HIDDEN)) / 3, np.zeros(HIDDEN), rng.normal(size=HIDDEN) / 4, np.zeros(1)]


def gradient(weights: list[Array], features: Array, targets: Array) -> tuple[list[Array], float]:
    """Return the gradient of the mean squared error, and the error."""
    first, bias, second, last = weights
    hidden = np.tanh(features @ first + bias)
    error = hidden @ second + last - targets
    back = 2 / len(targets) * error[:, None] * second * (1 - hidden**2)
    top = 2 / len(targets) * error
    return [features.T @ back, back.sum(0), hidden.T @ top, np.array([top.sum()])], float((error**2).mean())


def main() -> None:
    records, epochs, batch, seed = map(int, sys.argv[1:5])
    pause, log = float(sys.argv[5]), os.open(sys.argv[6], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.environ['AVACTL_WORKER']} %(message)s")
    slow, hold = Path(os.environ["SLOW"]), Path(os.environ["HOLD"])
    features, targets = dataset(records)
    weights = initial(seed)
    with avactl_worker.connect() as master:
        group = master.group(weights)

        def note(what: str, **more: Any) -> None:
            line = {"worker": master.worker, "what": what, "time": time.time(), "size": group.size, **more}
            os.write(log, json.dumps(line).encode() + b"\n")

        data = master.dataset("train", records, records_per_task=32, epochs=epochs, seed=seed)
        for step in group.batches(data, batch, lambda _, start, end: range(start, end)):
            with step:
                note("begun", step=step.number, records=step.records)
                time.sleep(pause if slow.is_file() else 0.0)
                chosen = np.array(step.batch)
                gradients, loss = gradient(weights, features[chosen], targets[chosen])
                *gradients, loss = step.mean([*gradients, loss])
                for weight, each in zip(weights, gradients, strict=True):
                    weight -= RATE * each
                step.report(loss=loss)
                digest = hashlib.sha256(b"".join(each.tobytes() for each in weights)).hexdigest()[:12]
                note("done", step=step.number, digest=digest, round=group.revision)
        note("final", step=group.step, leader=group.leader, loss=gradient(weights, features, targets)[1])
        while group.leader and hold.is_file():
            time.sleep(0.05)


if __name__ == "__main__":
    main()
