"""Synchronous training by workers that come and go. NumPy only."""

from __future__ import annotations

import os
import time

import avactl_worker
import linear
import numpy as np


def main() -> None:
    weights = np.zeros(linear.FEATURES)
    with avactl_worker.connect() as master:
        group = master.group([weights])
        for step in group.steps(linear.EPOCHS):
            with step:
                time.sleep(float(os.environ.get("STEP_SECONDS", "0")))  # stands in for a larger model
                own = linear.gradient(weights, *linear.data(group.rank, group.size))
                gradient, squared_error = step.sum(own)
                weights -= linear.RATE / linear.RECORDS * gradient
                if group.rank == 0:
                    linear.show(step.number - 1, squared_error)
        if group.leader:
            print(f"{group.size} workers at the end, sum of weights {weights.sum():.6f}", flush=True)


if __name__ == "__main__":
    main()
