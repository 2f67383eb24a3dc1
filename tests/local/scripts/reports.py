"""Reports its progress at each of STEPS steps; the first process also prints lines that are no progress."""

from __future__ import annotations

import os

import avactl_worker

STEPS = 100
for step in range(1, STEPS + 1):
    avactl_worker.report(step, STEPS, records=64, epoch=1 + step // 60, epochs=2, loss=1 / step)
if os.environ["AVACTL_INDEX"] == "0":
    print('{"avactl_progress": "odd"}')
    print("INFO " + '{"avactl_progress": {"step": 7, "loss": NaN, "\\u001b]0;owned": 1}}')
