"""Fits a line by gradient descent on tasks that the job's master hands out. NumPy only.

avactl elastic master --state /tmp/job/state --listen 127.0.0.1:2380 &
AVACTL_MASTER=127.0.0.1:2380 python line.py &
AVACTL_MASTER=127.0.0.1:2380 python line.py
"""

import numpy as np

import avactl_worker

master = avactl_worker.connect()
data = master.dataset("train", [("a", 6_000), ("b", 4_000)], records_per_task=100, epochs=3, seed=7)
weights = np.zeros(2)
for task in data:
    # A real job reads records task.start to task.end of task.file.
    x = np.random.default_rng([ord(task.file), task.start]).random(len(task))
    error = weights[0] * x + weights[1] - (3 * x + 1)
    weights -= 0.5 * np.array([(error * x).mean(), error.mean()])
    task.report(loss=float((error**2).mean()))
print(f"{master.worker}: y = {weights[0]:.1f} x + {weights[1]:.1f}")
master.close()
