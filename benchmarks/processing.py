"""Processing of images as a job: how its rate grows with its workers.

    python -m benchmarks.processing [--images 10000] [--workers 2] [--repeats 3] [--folder DIR]

Each worker is a process that processes one image at a time; tasks come from a real job master on this machine. Images
are JPEGs of 640 × 480 pixels, scaled to 256 × 256 and stored as JPEG, in directories of this machine, cached before.
The time is that of the tasks: from the first part that is written to the last; the start of the processes and the check
at the end, which one worker does, are left out and printed. Runs with one worker and with all of them take turns; the
ratio is that of the fastest ones.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from benchmarks.clusters import bar as at_least_bar
from benchmarks.measure import folder_for_files
from tests.datasets.processing import ProcessingJob

STEPS = "[{resize: {width: 256, height: 256}}]"
DISTINCT = 50
"""Different images; the others are copies of them."""


LOOK_INTERVAL_S = 0.2
"""A look costs some milliseconds of the cores that are measured."""


class Timing(NamedTuple):
    """Seconds of one run."""

    tasks: float
    """From the first task that is done to the last."""
    whole: float


def write_images(folder: Path, count: int) -> None:
    """Write photos: smooth colours with noise, as a camera makes them."""
    contents = []
    for seed in range(min(DISTINCT, count)):
        small = Image.frombytes("RGB", (40, 30), random.Random(seed).randbytes(40 * 30 * 3))
        out = io.BytesIO()
        small.resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        contents.append(out.getvalue())
    for number in range(count):
        path = folder / f"{number // 1000:03}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[number % len(contents)])


def run_job(folder: Path, workers: int) -> Timing:
    """Process the images of `raw` with a number of workers."""
    target, state = folder / "made", folder / "state"
    for path in (target, folder / "made.manifest", state):
        shutil.rmtree(path, ignore_errors=True)
    state.mkdir()
    parts = folder / "made.manifest" / "parts"
    args = (str(folder / "raw"), str(target), "--steps", STEPS, "--jobs", "1")
    began = time.monotonic()
    times: list[float] = []
    with ProcessingJob(state, workers, args, {"OMP_NUM_THREADS": "1"}) as job:
        while not job.ended():
            with suppress(FileNotFoundError):  # the last worker removes them
                times = [entry.stat().st_mtime for entry in os.scandir(parts)] or times
            time.sleep(LOOK_INTERVAL_S)
    return Timing(max(times) - min(times), time.monotonic() - began)


def measure(folder: Path, images: int, workers: int, repeats: int) -> None:
    """Measure both numbers of workers in turn."""
    write_images(folder / "raw", images)
    best: dict[int, Timing] = {}
    print(f"\n{images:,} images of 640×480 → 256×256")
    print(f"{'workers':>8}{'tasks, s':>10}{'images/s':>10}{'whole, s':>10}")
    for _ in range(repeats):
        for count in (1, workers):
            timing = run_job(folder, count)
            print(f"{count:8}{timing.tasks:10.1f}{images / timing.tasks:10.0f}{timing.whole:10.1f}")
            if count not in best or timing.tasks < best[count].tasks:
                best[count] = timing
    ratio = best[1].tasks / best[workers].tasks / workers
    at_least_bar("processing-scales", ratio, 0.8, at_least=True, unit=" of linear")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where files are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="avactl-processing-", dir=folder_for_files(options.folder)) as folder:
        measure(Path(folder), options.images, options.workers, options.repeats)


if __name__ == "__main__":
    main()
