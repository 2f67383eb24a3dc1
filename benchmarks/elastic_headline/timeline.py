"""What the workers and the service did over time, read from their records: slots in use, waits, makespan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.elastic_headline.kubelet import Life

SERVICE = "web"


class Task(NamedTuple):
    """A task that a worker began, in Unix time."""

    job: str
    worker: int
    start: int
    stop: int
    began: float
    ended: float
    done: bool
    """False if the worker was killed in it; then `ended` is the worker's end."""


class Busy(NamedTuple):
    """A slot in use."""

    owner: str
    began: float
    ended: float


def tasks(folder: Path, lives: Iterable[Life], until: float) -> list[Task]:
    """Return all tasks. Those that were not ended by `until` end then."""
    ends: dict[tuple[str, int], list[float]] = {}
    for life in lives:
        if life.role == "worker":
            ends.setdefault((life.owner, int(life.name.split("-")[-2])), []).append(life.ended)
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        job, index, _ = path.name.split(".", 2)
        begun: list[list[float]] = []
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if len(entry) == 4:
                begun.remove(entry[:3])
                found.append(Task(job, int(index), int(entry[0]), int(entry[1]), entry[2], entry[3], True))
            else:
                begun.append(entry)
        for start, stop, began in begun:
            ended = min((end for end in ends.get((job, int(index)), ()) if end > began), default=until)
            found.append(Task(job, int(index), int(start), int(stop), began, ended, False))
    return sorted(found, key=lambda task: task.began)


def busy(found: Sequence[Task], lives: Iterable[Life]) -> list[Busy]:
    """Return when slots were in use: a worker in a task, or a pod of the service that runs."""
    return [
        *(Busy(task.job, task.began, task.ended) for task in found),
        *(Busy(life.owner, life.began, life.ended) for life in lives if life.owner == SERVICE),
    ]


def share(found: Iterable[Busy], slots: int, began: float, ended: float) -> float:
    """Return the part of the slots' time between two moments that was in use."""
    used = sum(max(0.0, min(each.ended, ended) - max(each.began, began)) for each in found)
    return used / (slots * (ended - began))


def repeated(found: Iterable[Task], records: int) -> int:
    """Return how many records were computed to the end more than once. Raises ValueError if some never were."""
    counts = [0] * records
    for task in found:
        if task.done:
            for record in range(task.start, task.stop):
                counts[record] += 1
    if not all(counts):
        raise ValueError(f"{counts.count(0)} of {records} records were never computed")
    return sum(count - 1 for count in counts)
