"""Linear regression by gradient descent: the model of all examples, and the script that they must equal."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

RECORDS, FEATURES, EPOCHS, RATE = 4096, 16, 10, 0.1


def data(rank: int = 0, size: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Every size-th record from `rank` on: features and targets."""
    random = np.random.default_rng(7)
    features = random.normal(size=(RECORDS, FEATURES))
    targets = features @ random.normal(size=FEATURES) + 0.1 * random.normal(size=RECORDS)
    return features[rank::size], targets[rank::size]


def gradient(weights: np.ndarray, features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
    """Gradient and squared error, both summed over the records."""
    error = features @ weights - targets
    return 2 * features.T @ error, float(error @ error)


def show(epoch: int, squared_error: float) -> None:
    print(f"epoch {epoch} loss {squared_error / RECORDS:.6f}", flush=True)


def save(weights: np.ndarray) -> None:
    """Write the weights to the job's checkpoint volume, if it has one."""
    if "AVACTL_CHECKPOINT_DIR" in os.environ:
        np.save(Path(os.environ["AVACTL_CHECKPOINT_DIR"]) / "weights.npy", weights)


def main() -> None:
    weights = np.zeros(FEATURES)
    features, targets = data()
    for epoch in range(EPOCHS):
        total, squared_error = gradient(weights, features, targets)
        weights -= RATE / RECORDS * total
        show(epoch, squared_error)
    save(weights)


if __name__ == "__main__":
    main()
