"""A worker as the master knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

_WEIGHT = 0.2
"""Weight of the last task in a worker's speed."""


@dataclass(slots=True)
class Worker:
    """A process of the job. A process that is started again is another worker with the same name."""

    index: int
    name: str
    incarnation: int
    """A random number, by which a process is told from one of the same name before."""
    seen: float
    """Time of its last message."""
    held: set[tuple[int, int]] = field(default_factory=set)
    """Number of the dataset and position of each task that it holds."""
    tasks: int = 0
    records: int = 0
    speed: float = 0.0
    """Records per second, smoothed; 0 if unknown."""

    def finished(self, records: int, seconds: float | None) -> None:
        """Count a task that took `seconds`, or an unknown time."""
        self.tasks += 1
        self.records += records
        if seconds:
            speed = records / seconds
            self.speed = speed if not self.speed else (1 - _WEIGHT) * self.speed + _WEIGHT * speed
