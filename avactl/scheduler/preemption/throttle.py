"""When plans for room are made: none twice while nothing was freed, and vain ones for a part of the time only."""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic

from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

_TURN = 1.0
"""Seconds for which nobody else plans until the unit whose turn it is has done so."""
_SAVED = 0.05
"""Seconds of vain plans that may be made at once where none were for a while: as long as few wait, nobody's plan is put
off, for then others with less priority would take what is free."""
_KNOWN = 10_000
"""Groups of units of which it is remembered that there is no plan."""


class PreemptionThrottle:
    """Groups stand for units for which there is a plan, or not, together."""

    def __init__(self, queue: SchedulingQueue, share: float) -> None:
        """`share` of all time may go into plans that come to nothing."""
        self._queue, self._share = queue, share
        self._vain: dict[Hashable, tuple[int, str]] = {}
        self._skipped: dict[str, dict[Hashable, None]] = {}
        """Groups by team that had no plan because planning rested."""
        self._turn = ""
        self._began = self._rests = 0.0
        self._saved, self._counted = _SAVED, monotonic()
        """Seconds left for vain plans, and when that was so; below zero it rests."""

    def resume_skipped(self) -> None:
        """After a rest the first of a group that was skipped is tried again: one team after the other."""
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
        """The state was built anew."""
        self._vain.clear()

    def known(self, group: Hashable, freed: int) -> str | None:
        """Return the message of groups whose last attempt failed at this change epoch; None if there was none."""
        then, words = self._vain.get(group, (-1, ""))
        return words if then == freed else None

    def begin(self, key: str, group: Hashable, team: str = "") -> bool:
        """Return True if a unit of a team may plan now; if not, its group gets a turn later."""
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
        """The plan that was begun came to nothing; `words`: what the unit is told nevertheless."""
        if len(self._vain) > _KNOWN:
            self._vain.clear()
        self._vain[group] = (freed, words)
        now = monotonic()
        saved = min(_SAVED, self._saved + (self._began - self._counted) * self._share)
        self._saved, self._counted = saved - (now - self._began) * (1 - self._share), now
        self._rests = now + max(0.0, -self._saved / self._share)
