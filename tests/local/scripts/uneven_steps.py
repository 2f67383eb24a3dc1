"""Synchronous steps, with 64 records each. The first process with index 2 takes five times as long for its part."""

from __future__ import annotations

import os
import time
from pathlib import Path

import avactl_worker
import linear
import numpy as np

EPOCHS = 2
folder = Path(os.environ["AVACTL_CHECKPOINT_DIR"])
slow = False
if os.environ["AVACTL_INDEX"] == "2":
    try:
        (folder / "first").touch(exist_ok=False)
        slow = True
    except FileExistsError:
        print("this is another process", flush=True)
features, targets = linear.data()
weights, seen = np.zeros(linear.FEATURES), np.zeros(linear.RECORDS)
with avactl_worker.connect() as master:
    group = master.group([weights, seen])
    data = master.dataset("records", linear.RECORDS, records_per_task=16, epochs=EPOCHS, seed=7)
    for step in group.batches(data, 64, lambda file, start, end: range(start, end)):
        with step:
            time.sleep(0.25 if slow else 0.05)
            chosen = np.array(step.batch)
            mine = np.bincount(chosen, minlength=linear.RECORDS).astype(float)
            gradient, counts = step.sum([features[chosen].T @ (features[chosen] @ weights - targets[chosen]), mine])
            weights -= linear.RATE / 64 * gradient
            seen += counts
    if group.leader:
        # Each record of each epoch is in the state once.
        print(f"records seen {sorted(set(seen.astype(int).tolist()))} times by {group.size} workers", flush=True)
