"""Memory of failed attempts: equal demands are not tried again until something is freed."""

from __future__ import annotations

from collections.abc import Hashable

MAX_DEMANDS = 10_000


class FailedDemands:
    """Demands that fitted nowhere, with the reason."""

    def __init__(self) -> None:
        self._failures: dict[Hashable, tuple[int, str]] = {}
        """Change epoch of the attempt, and the reason, by demand."""

    def record(self, demand: Hashable, change_epoch: int, reason: str) -> None:
        """Record a failed attempt."""
        if len(self._failures) >= MAX_DEMANDS:
            self._failures.clear()
        self._failures[demand] = (change_epoch, reason)

    def reason(self, demand: Hashable, change_epoch: int) -> str | None:
        """Return the reason of an attempt that failed at this change epoch; None if there was none."""
        epoch, reason = self._failures.get(demand, (-1, ""))
        return reason if epoch == change_epoch else None

    def forget(self, demand: Hashable) -> None:
        """Forget a demand."""
        self._failures.pop(demand, None)

    def clear(self) -> None:
        """Forget all demands after a rebuild of the state."""
        self._failures.clear()
