"""Settings of the health check of one pod."""

from __future__ import annotations

from dataclasses import dataclass

STARTS, REPLACED, FAILED = 0, 79, 80
"""Exit codes: the training starts; the pod is to be replaced, on another node; the job fails."""
MAX_PROCESSES = 64
"""Processes of one test in one pod."""


@dataclass(frozen=True)
class Settings:
    """What the job's spec says, and who this pod is."""

    workers: int
    coordinator: tuple[str, int]
    """Host and port of worker 0 in the check."""
    rendezvous: int
    """Port on which worker 0 listens during training."""
    size: int
    """Bytes of an all-reduce."""
    timeout: float
    """Seconds of one test."""
    wait: float
    """Seconds that a worker waits for the others."""
    replacements: int
    """Workers that are replaced, at most."""
    below: float
    """Share of the median speed below which a worker is slow."""
    replace_slow: bool
    index: int
    address: str
    """IP address of this pod."""
    run: str
    """Run of the job: pods of another one are not in the check."""
    incarnation: str
    """UID of this pod."""
    gpus: int
    """GPUs that the pod has asked for."""
    restarts: int
    """Number of pods of this index before, in this run."""
    alone: float = 60.0
    """Seconds after which a pod that comes later than the others starts without them."""

    @property
    def own_port(self) -> int:
        return self.coordinator[1]


def patience(timeout: float) -> float:
    """Seconds for the processes of a test that has a timeout: they start and end besides."""
    return timeout * 1.25 + 2
