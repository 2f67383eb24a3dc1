"""A worker that trains by sleeping: one record is `$SECOND` seconds. It writes each task to a file of its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import avactl_worker


def main() -> None:
    second, records = float(os.environ["SECOND"]), int(os.environ["RECORDS"])
    data = avactl_worker.connect().dataset("train", records, records_per_task=int(os.environ["RECORDS_PER_TASK"]))
    name = f"{os.environ['AVACTL_JOB']}.{os.environ['AVACTL_INDEX']}.{os.getpid()}.jsonl"
    with Path(os.environ["TIMELINE"], name).open("w", buffering=1) as timeline:
        for task in data:
            began = time.time()
            # Written before, so that a task is known also if its worker is killed in it.
            timeline.write(json.dumps([task.start, task.end, began]) + "\n")
            time.sleep(len(task) * second)
            timeline.write(json.dumps([task.start, task.end, began, time.time()]) + "\n")


if __name__ == "__main__":
    main()
