"""Tasks of a sleep each. The first process with index 2 is five times as slow, like one on a bad machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import avactl_worker

folder = Path(os.environ["AVACTL_CHECKPOINT_DIR"])
index = os.environ["AVACTL_INDEX"]
slow = False
if index == "2":
    try:
        (folder / "first").touch(exist_ok=False)
        slow = True
    except FileExistsError:
        print("this is another process", flush=True)
done = os.open(folder / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for task in avactl_worker.connect().dataset("records", 6000, records_per_task=10, seed=7):
    time.sleep(0.25 if slow else 0.05)
    os.write(done, b"%s %d %d\n" % (index.encode(), task.start, task.end))
