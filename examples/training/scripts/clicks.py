"""Click prediction with embeddings and a dense layer, on the job's parameter servers: a factorization machine."""

from __future__ import annotations

import os

import numpy as np
from avactl_worker import ps

FIELDS, IDS, DIM, BATCH, STEPS = 8, 20_000, 8, 256, 300


def batch(random: np.random.Generator, teacher: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the fields of some records, and whether a user clicked."""
    ids = (IDS * random.random((BATCH, FIELDS)) ** 3).astype(np.int64)  # few are frequent, and many are rare
    return ids, random.random(BATCH) < 1 / (1 + np.exp(-teacher[ids].sum(axis=1)))


def gradients(
    vectors: np.ndarray, dense: dict[str, np.ndarray], clicked: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Gradients of the vectors and of the dense layer, and the mean log loss."""
    joint = vectors.sum(axis=1)
    pairs = (joint**2 - (vectors**2).sum(axis=1)).sum(axis=1) / 2
    logits = joint @ dense["weights"] + dense["bias"][0] + pairs
    error = (1 / (1 + np.exp(-logits)) - clicked)[:, None] / len(clicked)
    of_vectors = error[:, None] * (dense["weights"] + joint[:, None] - vectors)
    loss = float(np.logaddexp(0, np.where(clicked, -logits, logits)).mean())
    return of_vectors, {"weights": (error * joint).sum(axis=0), "bias": error.sum(axis=0)}, loss


def main() -> None:
    random = np.random.default_rng(int(os.environ["AVACTL_INDEX"]))
    teacher = np.random.default_rng(7).normal(size=IDS)
    losses = []
    with ps.connect() as servers:
        embedding = servers.table("embedding", DIM, ps.AdaGrad(0.1), ps.normal(0.01))
        layer = servers.dense("layer", {"weights": np.ones(DIM), "bias": np.zeros(1)}, ps.Adam(0.01))
        for step in servers.steps(STEPS):
            ids, clicked = batch(random, teacher)
            rows, dense = embedding.pull(ids), layer.pull()
            of_vectors, of_dense, loss = gradients(rows.values[rows.index], dense, clicked)
            embedding.push(rows, of_vectors)
            layer.push(of_dense)
            losses.append(loss)
            if step % 100 == 0:
                print(f"step {step} loss {np.mean(losses[-50:]):.4f}", flush=True)


if __name__ == "__main__":
    main()
