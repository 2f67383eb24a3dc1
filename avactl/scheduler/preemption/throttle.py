"""Throttle preemption attempts: no retry until resources are freed, and a limited share of time for failures."""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic

from avactl.scheduler.queue.failed_demands import FailedDemands
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

TURN_S = 1.0
"""Time for which a unit has the exclusive right to the next attempt."""
MAX_SAVED_S = 0.05
"""Burst budget for failed preemption attempts. With few pending units no attempt is delayed; otherwise units of lower
priority could take the free resources."""


class PreemptionThrottle:
    """Limits the time spent on failed attempts. All units of a group succeed or fail alike."""

    def __init__(self, queue: SchedulingQueue, share: float) -> None:
        """`share`: largest share of time that may be spent on failed attempts."""
        self._queue, self._share = queue, share
        self._failures = FailedDemands()
        self._skipped: dict[str, dict[Hashable, None]] = {}
        """Groups by team whose attempts were skipped during a pause."""
        self._turn = ""
        self._began = self._paused_until = 0.0
        self._budget, self._budget_time = MAX_SAVED_S, monotonic()
        """Remaining budget in seconds, and its time; attempts pause while it is negative."""

    def resume_skipped(self) -> None:
        """After a pause, activate the first unit of a skipped group, in turn by team."""
        while self._skipped and monotonic() >= self._paused_until:
            team = next(iter(self._skipped))
            groups = self._skipped.pop(team)
            group = next(iter(groups))
            del groups[group]
            if groups:
                self._skipped[team] = groups
            unit = self._queue.activate_next(group)
            if unit is not None:
                self._turn, self._paused_until = unit.key, monotonic() + TURN_S

    def clear(self) -> None:
        """Reset after a rebuild of the state."""
        self._failures.clear()

    def recall_failure(self, group: Hashable, change_epoch: int) -> str | None:
        """Return the message of groups whose last attempt failed at this change epoch; None if there was none."""
        return self._failures.reason(group, change_epoch)

    def may_begin(self, key: str, group: Hashable, team: str = "") -> bool:
        """Return True if a unit may attempt preemption now; otherwise its group gets a turn later."""
        now = monotonic()
        if now < self._paused_until and key != self._turn:
            self._skipped.setdefault(team, {})[group] = None
            return False
        groups = self._skipped.get(team, {})
        groups.pop(group, None)
        if not groups:
            self._skipped.pop(team, None)
        self._turn, self._began, self._paused_until = "", now, 0.0
        return True

    def record_failure(self, group: Hashable, change_epoch: int, words: str) -> None:
        """Record a failed attempt; `words` is the message for the unit."""
        self._failures.record(group, change_epoch, words)
        now = monotonic()
        saved = min(MAX_SAVED_S, self._budget + (self._began - self._budget_time) * self._share)
        self._budget, self._budget_time = saved - (now - self._began) * (1 - self._share), now
        self._paused_until = now + max(0.0, -self._budget / self._share)
