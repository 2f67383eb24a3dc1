"""Synchronous steps of `benchmarks.elastic`: faults, and workers that come and go. See there."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from benchmarks.measure import Bar, bar, console
from tools.elastic import SyncJob

FOREVER = 100_000
"""Epochs of a job that is ended from outside."""
Notes = list[dict[str, Any]]


@contextmanager
def job(workers: int, pause: float, epochs: int = FOREVER, records: int = 2048, seed: int = 1) -> Iterator[SyncJob]:
    """Run a job whose steps take `pause` seconds; it has made steps with all workers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SyncJob(Path(folder), records, epochs, batch=64, seed=seed, pause=pause) as made,
    ):
        made.start(*(f"worker-{index}" for index in range(workers)))
        made.until_size(workers)
        yield made


def goodput(workers: int = 4, kills: int = 8, pause: float = 0.5, every: int = 20) -> None:
    """Kill a worker every 20 steps' time, start it again, and count steps; before that, the same without kills."""
    with job(workers, pause) as made:
        quiet = _rate(made, 2 * every * pause, lambda: None, 2 * every * pause)
        rng, before = random.Random(1), len(made.notes())

        def kill() -> None:
            name = rng.choice(sorted(made.running))
            made.send(signal.SIGKILL, name)
            made.start(name)

        noisy = _rate(made, kills * every * pause, kill, every * pause)
        notes = made.notes()[before:]
    begun = sum(each["what"] == "begun" for each in notes)
    done = sum(each["what"] == "done" for each in notes)
    steps = {each["step"] for each in notes if each["what"] == "done"}
    console.print(
        f"{kills} kills in {len(steps)} steps of {pause:g} s: {quiet:.2f} steps/s without kills, {noisy:.2f} with; "
        f"of {begun} parts of steps that were computed, {done} are in the model"
    )
    bar(Bar("goodput-lost-parts", max(0.0, 1 - done / begun), 0.03, "", 3))
    bar(Bar("goodput-lost-time", max(0.0, 1 - noisy / quiet), 0.03, "", 3))


def _rate(made: SyncJob, seconds: float, act: Callable[[], None], every: float) -> float:
    """Return steps per second, while something is done from time to time."""
    began, first = time.monotonic(), _last_step(made)
    following = began + every / 2
    while (now := time.monotonic()) < began + seconds:
        if now >= following:
            act()
            following += every
        time.sleep(0.01)
    return (_last_step(made) - first) / (time.monotonic() - began)


def _last_step(made: SyncJob) -> int:
    return max(int(each["step"]) for each in made.notes("done"))


def reform(times: int = 5, workers: int = 4) -> None:
    """Kill workers, and then stop one, which keeps its connections; measure the time to the next step."""
    with job(workers + times, 0.05) as made:
        killed = [_pause(made, signal.SIGKILL) for _ in range(times)]
        stopped = _pause(made, signal.SIGSTOP)
    text = ", ".join(f"{each:.2f}" for each in killed)
    console.print(f"seconds to the next step: {text} after a kill, {stopped:.2f} after a stop")
    bar(Bar("elastic-reformed", max(killed), 3, " s"))
    bar(Bar("elastic-vanished", stopped, 10, " s"))


def _pause(made: SyncJob, number: signal.Signals) -> float:
    size = len(made.running)
    made.until_size(size)
    name = random.Random(size).choice(sorted(made.running))
    began = time.time()
    made.send(number, name)
    made.until(lambda notes: _after(notes, size - 1, began))
    return float(_after(made.notes(), size - 1, began)[0]["time"]) - began


def _after(notes: Notes, size: int, began: float) -> Notes:
    """Return the steps that so many workers have done since."""
    return [each for each in notes if (each["what"], each["size"]) == ("done", size) and each["time"] > began]


def resize(seeds: int = 5, epochs: int = 12) -> None:
    """Train with 4 workers, and with 4, 8, 3 and then 6; compare the final losses with their spread over seeds."""
    table = Table("seed", "4 workers", "4 → 8 → 3 → 6", title="loss after the last step")
    plain: list[float] = []
    changed: list[float] = []
    for seed in range(seeds):
        for losses, change in ((plain, False), (changed, True)):
            with job(4, 0.1, epochs, 4096, seed) as made:
                if change:
                    _change(made)
                made.end()
                losses.append(float(made.notes("final")[0]["loss"]))
        table.add_row(str(seed), f"{plain[-1]:.4f}", f"{changed[-1]:.4f}")
    console.print(table)
    spread, apart = stdev(plain), abs(fmean(changed) - fmean(plain))
    console.print(
        f"mean {fmean(plain):.4f} and {fmean(changed):.4f}, standard deviation over seeds {spread:.4f} and "
        f"{stdev(changed):.4f}"
    )
    bar(Bar("resize-difference-over-spread", apart / spread, 1))


def _change(made: SyncJob) -> None:
    made.start(*(f"worker-{index}" for index in range(4, 8)))
    made.until_size(8)
    made.send(signal.SIGKILL, *(f"worker-{index}" for index in range(5)))
    made.until_size(3)
    made.start(*(f"worker-{index}" for index in range(8, 11)))
    made.until_size(6)
