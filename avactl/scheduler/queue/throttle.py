"""Fair shares of scheduling time: failed attempts of one namespace do not delay other namespaces."""

from __future__ import annotations

from time import monotonic

MAX_FAILURE_SHARE = 0.2
"""Largest share of time for failed attempts of one namespace while other namespaces have active units."""
MAX_FAILURE_BURST_S = 0.5
"""Burst of failed attempts of one namespace."""
MAX_DEBT_S = 5.0
"""Limit of the debt, so that a namespace gets a turn after `MAX_DEBT_S / MAX_FAILURE_SHARE` seconds at the latest."""


class NamespaceThrottle:
    """A leaky bucket per namespace, in seconds of failed scheduling attempts."""

    def __init__(self) -> None:
        self._debts: dict[str, tuple[float, float]] = {}
        """Debt in seconds at a monotonic time, by namespace."""

    def charge(self, namespace: str, seconds: float) -> None:
        """Charge a failed attempt."""
        now = monotonic()
        self._debts[namespace] = min(MAX_DEBT_S, self._current_debt(namespace, now) + seconds), now

    def exceeded(self, namespace: str) -> bool:
        """Return True if other namespaces go first."""
        if namespace not in self._debts:
            return False
        debt = self._current_debt(namespace, monotonic())
        if not debt:
            del self._debts[namespace]
        return debt > MAX_FAILURE_BURST_S

    def _current_debt(self, namespace: str, now: float) -> float:
        debt, then = self._debts.get(namespace, (0.0, now))
        return max(0.0, debt - (now - then) * MAX_FAILURE_SHARE)
