"""Throttle preemption attempts: no retry until resources are freed, and a limited share of time for failures."""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic

from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

_TURN = 1.0
"""Seconds for which a unit has the exclusive right to the next attempt."""
_SAVED = 0.05
"""Burst budget for failed preemption attempts, in seconds. With few pending units no attempt is
delayed; otherwise units of lower priority could take the free resources."""
_KNOWN = 10_000
"""Maximum number of groups with a remembered failed attempt."""


class PreemptionThrottle:
    """Limits the time spent on failed attempts. All units of a group succeed or fail alike."""

    def __init__(self, queue: SchedulingQueue, share: float) -> None:
        """`share`: largest share of time that may be spent on failed attempts."""
        self._queue, self._share = queue, share
        self._vain: dict[Hashable, tuple[int, str]] = {}
        self._skipped: dict[str, dict[Hashable, None]] = {}
        """Groups by team whose attempts were skipped during a pause."""
        self._turn = ""
        self._began = self._rests = 0.0
        self._saved, self._counted = _SAVED, monotonic()
        """Remaining budget in seconds, and its time; attempts pause while it is negative."""

    def resume_skipped(self) -> None:
        """After a pause, activate the first unit of a skipped group, in turn by team."""
        while self._skipped and monotonic() >= self._rests:
            team = next(iter(self._skipped))
            groups = self._skipped.pop(team)
            group = next(iter(groups))
            del groups[group]
            if groups:
                self._skipped[team] = groups
            unit = self._queue.activate_next(group)
            if unit is not None:
                self._turn, self._rests = unit.key, monotonic() + _TURN

    def clear(self) -> None:
        """Reset after a rebuild of the state."""
        self._vain.clear()

    def known(self, group: Hashable, freed: int) -> str | None:
        """Return the message of groups whose last attempt failed at this change epoch; None if there was none."""
        then, words = self._vain.get(group, (-1, ""))
        return words if then == freed else None

    def begin(self, key: str, group: Hashable, team: str = "") -> bool:
        """Return True if a unit may attempt preemption now; otherwise its group gets a turn later."""
        now = monotonic()
        if now < self._rests and key != self._turn:
            self._skipped.setdefault(team, {})[group] = None
            return False
        groups = self._skipped.get(team, {})
        groups.pop(group, None)
        if not groups:
            self._skipped.pop(team, None)
        self._turn, self._began, self._rests = "", now, 0.0
        return True

    def vain(self, group: Hashable, freed: int, words: str) -> None:
        """Record a failed attempt; `words` is the message for the unit."""
        if len(self._vain) > _KNOWN:
            self._vain.clear()
        self._vain[group] = (freed, words)
        now = monotonic()
        saved = min(_SAVED, self._saved + (self._began - self._counted) * self._share)
        self._saved, self._counted = saved - (now - self._began) * (1 - self._share), now
        self._rests = now + max(0.0, -self._saved / self._share)
