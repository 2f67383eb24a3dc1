"""Fair shares of scheduling time: failed attempts of one namespace do not delay other namespaces."""

from __future__ import annotations

from time import monotonic

_SHARE = 0.2
"""Part of all time that failed attempts of one namespace may take while others have something to be decided."""
_BURST = 0.5
"""Seconds of failed attempts that a namespace may make at once."""
_MOST = 5.0
"""Seconds of debt at the most: after that a namespace is heard again within `_MOST / _SHARE` seconds."""


class NamespaceThrottle:
    """A leaky bucket per namespace, in seconds of failed scheduling attempts."""

    def __init__(self) -> None:
        self._debts: dict[str, tuple[float, float]] = {}
        """Debt, and the monotonic time as of which it is that."""

    def spend(self, namespace: str, seconds: float) -> None:
        """Charge a failed attempt."""
        now = monotonic()
        self._debts[namespace] = min(_MOST, self._debt(namespace, now) + seconds), now

    def exceeded(self, namespace: str) -> bool:
        """Return True if other namespaces go first."""
        if namespace not in self._debts:
            return False
        debt = self._debt(namespace, monotonic())
        if not debt:
            del self._debts[namespace]
        return debt > _BURST

    def _debt(self, namespace: str, now: float) -> float:
        debt, then = self._debts.get(namespace, (0.0, now))
        return max(0.0, debt - (now - then) * _SHARE)
