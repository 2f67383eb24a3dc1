"""Large units that have waited long, behind which the younger pods of their team wait for a while.

Without this, small pods of a team take every GPU that comes free before enough of them are free for a gang. Other teams
are not held up: a team within its guarantee reclaims what they borrow. A hold ends when the unit starts, or after as
long as the unit had to wait for it. In the latter case, the next one of the team begins as much later at the earliest,
so that younger pods wait for at most half of the time behind what does not start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from avactl.scheduler.objects.pod_info import PodInfo


class TeamHead(NamedTuple):
    """The unit behind which others of its team wait."""

    unit: str
    title: str
    rank: tuple[bool, int]
    created: str
    models: frozenset[str]
    """GPU models that it accepts; empty: all."""
    until: float
    """Unix time."""

    def precedes(self, rank: tuple[bool, int], created: str, models: frozenset[str]) -> bool:
        """Return True if pods of this rank and age, for these GPU models, wait behind it."""
        if self.models and models and not self.models & models:
            return False
        return rank < self.rank or (rank == self.rank and created > self.created)


class TeamHeads:
    """The current hold of each team."""

    def __init__(self, after: float) -> None:
        """`after`: seconds that a unit waits before younger pods wait behind it; 0: none ever do."""
        self._after = after
        self._heads: dict[str, TeamHead] = {}
        self._resting: dict[str, float] = {}
        """Unix time before which a team has no other hold."""

    def get(self, team: str) -> TeamHead | None:
        """Return the unit behind which others of a team wait."""
        return self._heads.get(team)

    def may_begin(self, team: str, created: float, now: float) -> bool:
        """Return True if a unit, created at this Unix time, may hold up younger pods of its team."""
        if not self._after or team in self._heads or now < created + self._after:
            return False
        return now >= self._resting.get(team, 0.0)

    def begin(self, team: str, unit: str, pods: list[PodInfo], models: frozenset[str], now: float) -> None:
        """Have younger pods of a team wait behind a unit."""
        self._heads[team] = TeamHead(
            unit,
            pods[0].gang or pods[0].key,
            max(pod.rank for pod in pods),
            min(pod.created for pod in pods),
            models,
            now + self._after,
        )

    def end(self, now: float, waits: Callable[[str], bool]) -> list[str]:
        """End holds whose unit no longer `waits`, or whose time is over; return the teams."""
        ended = []
        for team, head in list(self._heads.items()):
            over = now >= head.until
            if over or not waits(head.unit):
                del self._heads[team]
                ended.append(team)
                if over:
                    self._resting[team] = now + self._after
        if ended:
            self._resting = {team: until for team, until in self._resting.items() if now < until}
        return ended
