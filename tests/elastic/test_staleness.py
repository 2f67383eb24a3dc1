"""Staleness of workers of random speeds, through a real master."""

from __future__ import annotations

import struct
import subprocess
import sys
from mmap import mmap
from pathlib import Path

import pytest

from tools.elastic import ElasticJob, environment
from tools.waiting import wait_until

WORKERS = 6
FAR = 1 << 40
"""Steps of those that have ended."""
PART = """
import mmap, random, sys, time
import avactl_worker

index, steps, staleness, place, far = *map(int, sys.argv[1:4]), sys.argv[4], int(sys.argv[5])
chance = random.Random(index)
with open(place, "r+b") as file:
    completed = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")  # reads and writes whole numbers, unlike struct
master = avactl_worker.connect()
clock = master.clock(staleness=staleness)
largest, pace = 0, 0.0
time.sleep(chance.random() * 0.4)  # processes do not start together
while clock.step < steps:
    if clock.step:
        # What the master can know of this worker is in the memory before: nobody is taken for slower than it knows.
        completed[index] = clock.step
    step = clock.tick()
    completed[index] = step - 1  # of a worker that joins: the slowest's
    largest = max(largest, step - 1 - min(completed))
    if chance.random() < 0.02:
        pace = chance.choice((0.0, 0.0, 0.0002, 0.002))
    time.sleep(pace * chance.random())
completed[index] = far
print(largest)
"""


def largest_lead(folder: Path, steps: int, staleness: int, kills: int = 0) -> int:
    """Run WORKERS processes for `steps` steps each; returns how far any was ahead of the slowest as it began a step."""
    place = folder / "completed"
    place.write_bytes(struct.pack("q", 0) * WORKERS)
    options = ("--workers", str(WORKERS))
    with (
        ElasticJob(folder, workers=0, records=1, records_per_task=1, options=options) as job,
        place.open("r+b") as file,
    ):
        processes = []
        try:
            for index in range(WORKERS):
                words = map(str, (index, steps, staleness, place, FAR))
                more = {"AVACTL_MASTER": job.address, "AVACTL_WORKER": f"worker-{index}"}
                command, env = [sys.executable, "-c", PART, *words], {**environment(), **more}
                processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
            with mmap(file.fileno(), 0) as completed:

                def wait_for_step(step: int) -> None:
                    wait_until(
                        lambda: min(struct.unpack(f"{WORKERS}q", completed)) % FAR >= step,
                        f"step {step} of all workers",
                        timeout=1200.0,
                        failed=lambda: None not in [each.poll() for each in processes],
                    )

                for kill in range(1, kills + 1):
                    wait_for_step(steps * kill // (kills + 1))
                    job.kill_master()
            found = [each.communicate(timeout=1200)[0] for each in processes]
        finally:
            for each in processes:
                each.kill()
                each.wait()
        assert [each.returncode for each in processes] == [0] * WORKERS, job.log.read_text()[-4000:]
    return max(map(int, found))


@pytest.mark.parametrize("staleness", [0, 3])
def test_staleness_of_random_speeds(tmp_path: Path, staleness: int) -> None:
    assert largest_lead(tmp_path, 200, staleness) == staleness  # the bound holds, and is used


def test_staleness_when_the_master_is_killed(tmp_path: Path) -> None:
    assert largest_lead(tmp_path, 200, staleness=2, kills=1) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "kills"), [(0, 0), (1, 3), (4, 0), (16, 3)])
def test_staleness_in_100_000_steps(tmp_path: Path, staleness: int, kills: int) -> None:
    assert largest_lead(tmp_path, 100_000 // WORKERS + 1, staleness, kills) == staleness
