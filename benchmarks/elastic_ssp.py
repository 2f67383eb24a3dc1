"""Time to the same loss of synchronous, bounded-staleness and asynchronous training, with workers of random speeds.

    python -m benchmarks.elastic_ssp [--workers 8] [--seeds 5] [--staleness 8] [--picture FILE]

A parameter server in this process holds a linear model; workers compute gradients of mini-batches of their own part of
the data, and a sleep stands in for the compute. Each worker has a speed that changes at random moments: usually a step
takes 20 ms, from time to time up to six times that. The master is a process of its own, and its clock is all that
differs between the rows: a staleness of 0 (`bsp`), of `--staleness` steps (`ssp`), and none (`asp`). The rows of a seed
have the same data and the same speeds at the same times. Lead: the most steps that one worker was ahead of another.

A second table has steady speeds but for one worker, which takes three times as long (`--slow`), and synchronous steps:
all gradients count, or the first ones with one backup worker. The update is the mean of the gradients that count.

The model is convex and its learning rate small, so stale gradients cost nothing here: asynchronous training is as fast
as the workers on average, and the others show what their bounds cost. A bound is for models that need it to converge.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import avactl_worker
import numpy as np
import numpy.typing as npt
from rich.table import Table

from avactl.base.svg import Svg
from benchmarks.measure import Bar, bar, console
from tools.elastic import ElasticJob

STEP, SLOWEST, CHANGE, OFTEN_SLOW = 0.02, 6.0, 0.3, 0.15
"""Seconds of a step, the largest factor, mean seconds of a speed, and the share of slow ones."""
FEATURES, RECORDS, BATCH, RATE, NOISE = 64, 4096, 32, 0.04, 0.1
TARGET = 1.5 * NOISE**2
"""Loss at which the clock is stopped; the noise of the data is NOISE² of it."""
LIMIT = 120.0
FAR = 2**32
Vector = npt.NDArray[np.float64]
COLOURS = {"bsp": "#4c78a8", "ssp": "#54a24b", "asp": "#f58518"}


class Result(NamedTuple):
    """One run to the target."""

    seconds: float
    steps: float
    """Mean of the workers; with backup workers the number of steps."""
    lead: int
    losses: list[tuple[float, float]]
    """Seconds and loss."""


class Speeds:
    """Factor of each worker's step over time."""

    def __init__(self, workers: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        count = int(4 * LIMIT / CHANGE)
        self._until = [list(np.cumsum(chance.exponential(CHANGE, count))) for _ in range(workers)]
        slow = chance.random((workers, count)) < OFTEN_SLOW
        self._factors = np.where(slow, chance.uniform(2, SLOWEST, (workers, count)), 1.0)

    def seconds(self, worker: int, now: float) -> float:
        """Return the seconds of a step that begins at a time since the start."""
        return STEP * float(self._factors[worker, bisect.bisect(self._until[worker], now)])


class OneSlow:
    """The last worker takes `factor` times as long as the others."""

    def __init__(self, workers: int, factor: float) -> None:
        self._last, self._factor = workers - 1, factor

    def seconds(self, worker: int, now: float) -> float:
        """Return the seconds of a step."""
        return STEP * (self._factor if worker == self._last else 1.0)


class Server:
    """The model's weights, and how far each worker is."""

    def __init__(self, workers: int, seed: int) -> None:
        chance = np.random.default_rng(1000 + seed)
        self.features = chance.normal(size=(RECORDS, FEATURES))
        self.targets = self.features @ chance.normal(size=FEATURES) + NOISE * chance.normal(size=RECORDS)
        self.weights: Vector = np.zeros(FEATURES)
        self.completed = [0] * workers
        self.lead = 0
        self._lock = threading.Lock()

    def begin(self, step: int) -> Vector:
        """Return the weights for a step."""
        with self._lock:
            self.lead = max(self.lead, step - 1 - min(self.completed))
            return self.weights.copy()

    def push(self, worker: int, step: int, gradient: Vector) -> None:
        """Apply a gradient at once."""
        with self._lock:
            self.weights -= RATE * gradient
            self.completed[worker] = step

    def loss(self) -> float:
        """Return the mean squared error over all data."""
        with self._lock:
            weights = self.weights.copy()
        return float(np.mean((self.features @ weights - self.targets) ** 2))


def train(workers: int, staleness: int, seed: int, speeds: Speeds | OneSlow, backup: int = 0) -> Result:
    """Train until the loss is TARGET, in steps of the first `workers - backup` gradients."""
    server, count = Server(workers, seed), workers - backup
    ended, ready = threading.Event(), threading.Barrier(workers + 1)
    began = [0.0]

    def work(index: int, address: str) -> None:
        chance = np.random.default_rng((seed, index))
        part = slice(index, None, workers)
        features, targets = server.features[part], server.targets[part]
        with avactl_worker.connect(address, f"worker-{index}") as master:
            clock = master.clock(staleness)
            step = clock.tick()
            ready.wait()
            while not ended.is_set():
                weights = server.begin(step)
                chosen = chance.choice(len(targets), BATCH, replace=False)
                time.sleep(speeds.seconds(index, time.monotonic() - began[0]))
                error = features[chosen] @ weights - targets[chosen]
                if clock.counts():
                    server.push(index, step, 2 / BATCH / count * features[chosen].T @ error)
                step = clock.tick()

    options = ("--gradients", str(count)) if backup else ()
    with TemporaryDirectory() as folder, ElasticJob(Path(folder), 0, 1, 1, options=options) as job:
        job.status()  # the master listens
        threads = [threading.Thread(target=work, args=(index, job.address), daemon=True) for index in range(workers)]
        for thread in threads:
            thread.start()
        began[0] = time.monotonic()
        ready.wait()
        began[0] = time.monotonic()
        losses = [(0.0, server.loss())]
        while losses[-1][1] > TARGET and losses[-1][0] < LIMIT:
            time.sleep(0.01)
            losses.append((time.monotonic() - began[0], server.loss()))
        steps = max(server.completed) if backup else statistics.mean(server.completed)
        result = Result(losses[-1][0], steps, server.lead, losses)
        ended.set()
        for thread in threads:
            thread.join(30)
    return result


def picture(runs: dict[str, list[Result]], staleness: int) -> str:
    """Draw the loss over time of the first seed."""
    left, top, width, height = 60, 50, 640, 300
    shown = {name: results[0] for name, results in runs.items()}
    longest = max(each.seconds for each in shown.values())
    high, low = np.log10(max(each.losses[0][1] for each in shown.values())), np.log10(TARGET)
    svg = Svg()
    svg.text(left, 24, "Loss over time, with workers of random speeds", size=14, bold=True)
    svg.rect(left, top, width, height, fill="#ffffff", stroke="#cbd2d9")
    for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        y = top + height * (high - power) / (high - low)
        svg.curve(left, y, left + width, y, stroke="#cbd2d9", width=1)
        svg.text(left - 8, y + 4, f"{10.0**power:g}", anchor="end")
    every = max(1, round(longest / 8))
    for second in range(0, int(longest) + 1, every):
        svg.text(left + width * second / longest, top + height + 18, f"{second} s", anchor="middle")
    for number, (name, result) in enumerate(shown.items()):
        points = result.losses[:: max(1, len(result.losses) // 150)] + result.losses[-1:]
        at = [
            (left + width * x / longest, top + height * (high - max(low, np.log10(y))) / (high - low))
            for x, y in points
        ]
        for before, after in pairwise(at):
            svg.curve(*before, *after, stroke=COLOURS[name], width=2)
        label = f"{name} {staleness}" if name == "ssp" else name
        svg.rect(left + width - 230 + 80 * number, 14, 11, 11, fill=COLOURS[name], radius=2)
        svg.text(left + width - 214 + 80 * number, 24, label)
    return svg.document(left + width + 30, top + height + 36, "Loss over time of bsp, ssp and asp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--staleness", type=int, default=8)
    parser.add_argument("--slow", type=float, default=3.0, metavar="FACTOR", help="time of the slow worker's step")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the loss over time as SVG")
    options = parser.parse_args()
    bounds = {"bsp": 0, "ssp": options.staleness, "asp": FAR}
    runs: dict[str, list[Result]] = {name: [] for name in bounds}
    for seed in range(options.seeds):
        for name, staleness in bounds.items():
            runs[name].append(train(options.workers, staleness, seed, Speeds(options.workers, seed)))
    title = f"loss {TARGET:g}, {options.workers} workers, mean of {options.seeds} seeds"
    table = Table("consistency", "seconds", "steps", "ms a step", "lead", title=title)
    mean = {name: statistics.mean(each.seconds for each in results) for name, results in runs.items()}
    for name, results in runs.items():
        steps = statistics.mean(each.steps for each in results)
        lead = max(each.lead for each in results)
        label = f"ssp {options.staleness}" if name == "ssp" else name
        table.add_row(label, f"{mean[name]:.2f}", f"{steps:.0f}", f"{1000 * mean[name] / steps:.0f}", str(lead))
    console.print(table)
    counting = {"all gradients": 0, "one backup worker": 1}
    slowed: dict[str, list[Result]] = {name: [] for name in counting}
    for seed in range(options.seeds):
        for name, backup in counting.items():
            speeds = OneSlow(options.workers, options.slow)
            slowed[name].append(train(options.workers, 0, seed, speeds, backup))
    title = f"loss {TARGET:g}, {options.workers} workers, one {options.slow:g} times as slow"
    table = Table("synchronous steps", "seconds", "steps", "ms a step", title=title)
    taken = {name: statistics.mean(each.seconds for each in results) for name, results in slowed.items()}
    for name, results in slowed.items():
        steps = statistics.mean(each.steps for each in results)
        table.add_row(name, f"{taken[name]:.2f}", f"{steps:.0f}", f"{1000 * taken[name] / steps:.0f}")
    console.print(table)
    if options.picture is not None:
        options.picture.write_text(picture(runs, options.staleness))
    bar(Bar("ssp-lead-over-bound", max(each.lead for each in runs["ssp"]) - options.staleness, 0, "", 0))
    bar(Bar("ssp-over-bsp", mean["ssp"] / mean["bsp"], 0.75))
    bar(Bar("backup-over-all-gradients", taken["one backup worker"] / taken["all gradients"], 0.6))


if __name__ == "__main__":
    main()
