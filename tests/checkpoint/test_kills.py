"""kill -9 at random moments: the last complete checkpoint is always there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from avactl_worker.checkpoint import load
from avactl_worker.checkpoint.stores import Directory

from tools.elastic import environment

SCRIPT = """
import sys
import numpy as np
from avactl_worker.checkpoint import Checkpoints

weights = {f"layer{index}": np.zeros(100_000) for index in range(8)}
with Checkpoints(sys.argv[1], every=0, keep=2, weights=weights) as checkpoints:
    step = checkpoints.restore()
    assert all((each == step).all() for each in weights.values()), "torn"
    print("restored", step, flush=True)
    while True:
        step += 1
        for each in weights.values():
            each += 1
        checkpoints.save(step)
"""


def rounds(folder: Path, count: int, seed: int, script: str = SCRIPT, python: str = sys.executable) -> int:
    """Kill a script COUNT times while it saves; returns how many of the kills left a part of a file.

    The script compares what it restores with the step.
    """
    chance = random.Random(seed)
    torn = known = 0
    for _ in range(count):
        process = subprocess.Popen(
            [python, "-c", script, str(folder)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, "the script could not restore"
            restored = int(line.split()[1])
            assert restored >= known
            while not Directory(folder).steps():
                assert process.poll() is None
            time.sleep(chance.uniform(0.0, 0.1))  # somewhere in a save
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        torn += bool(list(folder.glob(".step-*.part")))
        known = Directory(folder).steps()[-1]
        if python == sys.executable:
            assert all((each == known).all() for each in load(folder, known)["weights"].values())
    return torn


def test_kills_while_saving(tmp_path: Path) -> None:
    assert rounds(tmp_path, 12, seed=1) > 0
    found = load(tmp_path)["weights"]
    assert len({float(value) for each in found.values() for value in np.unique(each)}) == 1


@pytest.mark.slow
def test_many_kills_while_saving(tmp_path: Path) -> None:
    assert rounds(tmp_path, 300, seed=2) > 30
