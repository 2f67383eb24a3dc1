"""Who must give back, so that a work can start: as data, nothing is stopped here.

In this order, and only as far as it is needed:

1. Elastic surplus of the own team, of works that do not rank above.
2. What other teams borrow: from the team that has most over its share, its elastic surplus first, then whole works,
   the youngest first (services last, then by priority). Works that would cut into their team's guarantee come last.
3. Whole works of the own team that rank below.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

from avactl.placement.quota import Ledger, Work

Why = Literal["surplus", "borrowed", "priority"]


class Take(NamedTuple):
    """What one work gives back."""

    key: Hashable
    members: int
    """How many of its members."""
    whole: bool
    """Whether that is all of them: it stops."""
    why: Why


Enough = Callable[[Sequence[Take]], bool]


def make_room(ledger: Ledger, work: Work, free: int = 0, enough: Enough | None = None) -> list[Take] | None:
    """What must be given back for `work` to start; [] for nothing, None where even all would not do.

    `enough(takes)` says whether the work finds its place once these are gone; without it, GPUs of its model are
    counted, of which `free` are free now. The plan is minimal: without any one of its takes, or any one member less,
    it would not do.
    """
    planner = _Planner(ledger, work, free, enough)
    if planner.do([]):
        return []
    takes: list[Take] = []
    for take in planner.candidates():
        takes = _merged(takes, take)
        if planner.do(takes):
            return planner.pruned(takes)
    return None


def _merged(takes: list[Take], take: Take) -> list[Take]:
    """One take a work: more members of it in the place of fewer."""
    before = next((each for each in takes if each.key == take.key), None)
    if before is None:
        return [*takes, take]
    return [*(each for each in takes if each.key != take.key), take]


class _Planner:
    def __init__(self, ledger: Ledger, work: Work, free: int, enough: Enough | None) -> None:
        self.ledger = ledger
        self.work = work
        self.free = free
        self.enough = enough
        # What the takes so far would leave.
        self.after = ledger.copy()

    def do(self, takes: list[Take]) -> bool:
        after = self.ledger.copy()
        freed = 0
        for take in takes:
            given = after.works[take.key]
            freed += take.members * given.gpus
            if take.whole:
                after.end(take.key)
            else:
                after.resize(take.key, given.members - take.members)
        if after.may_start(self.work):
            return False
        if self.enough is not None:
            return self.enough(takes)
        return self.free + freed >= self.work.total

    def candidates(self) -> Iterator[Take]:
        own = self.work.team
        yield from self._surplus(own, lambda work: work.rank <= self.work.rank)
        yield from self._borrowed()
        rest = [work for work in self._of(own) if work.preemptible and work.rank < self.work.rank]
        for work in sorted(rest, key=_first_to_go):
            yield self._whole(work, "priority")

    def _of(self, team: str) -> list[Work]:
        return [work for work in self.after.works.values() if work.team == team and work.model == self.work.model]

    def _surplus(self, team: str, admitted: Callable[[Work], bool] = lambda _: True) -> Iterator[Take]:
        """A member at a time, of the work that goes first."""
        while works := [work for work in self._of(team) if work.surplus and admitted(work)]:
            yield self._member(min(works, key=_first_to_go))

    def _borrowed(self) -> Iterator[Take]:
        model, own = self.work.model, self.work.team
        limit = self.ledger.limit(own, model)
        guaranteed = self.ledger.used(own, model) + self.work.total <= limit.guaranteed
        due = self.ledger.shares(model, own, self.work.total)
        kept = {team: self.ledger.limit(team, model).guaranteed if guaranteed else due[team] for team in due}
        if not guaranteed and self.ledger.used(own, model) + self.work.total > due[own]:
            return
        while True:
            over = {team: self.after.used(team, model) - kept[team] for team in due if team != own}
            # A guarantee is given back by whoever borrows; whose turn it is, the shares say.
            order = sorted(over, key=lambda team: (due[team] - self.after.used(team, model), team))
            take = next((take for team in order if (take := self._next(team, over[team], guaranteed))), None)
            if take is None:
                return
            yield take

    def _next(self, team: str, over: float, guaranteed: bool) -> Take | None:
        """What a team gives next that has `over` more than it keeps."""
        if over <= 0:
            return None
        works = self._of(team)
        elastic = [work for work in works if work.surplus and (guaranteed or work.gpus <= over)]
        if elastic:
            return self._member(min(elastic, key=_first_to_go))
        whole = [work for work in works if work.preemptible and work.total and (guaranteed or work.total <= over)]
        if not whole:
            return None
        return self._whole(min(whole, key=lambda work: (work.total > over, *_first_to_go(work))), "borrowed")

    def _member(self, work: Work) -> Take:
        left = self.after.works[work.key].members - 1
        self.after.resize(work.key, left)
        return Take(work.key, self.ledger.works[work.key].members - left, False, "surplus")

    def _whole(self, work: Work, why: Why) -> Take:
        self.after.end(work.key)
        return Take(work.key, self.ledger.works[work.key].members, True, why)

    def pruned(self, takes: list[Take]) -> list[Take]:
        """Without what turned out not to be needed: whole works are spared first, of them those that go last."""
        last_first = takes[::-1]
        last_first.sort(key=lambda take: not take.whole)
        for take in last_first:
            without = [each for each in takes if each.key != take.key]
            if self.do(without):
                takes = without
                continue
            work = self.ledger.works[take.key]
            fewer = range(1, work.surplus + 1 if take.whole else take.members)
            for members in fewer:
                less = Take(take.key, members, False, "surplus")
                changed = [less if each.key == take.key else each for each in takes]
                if self.do(changed):
                    takes = changed
                    break
        return takes


def _first_to_go(work: Work) -> tuple[bool, int, float, str]:
    return work.serving, work.priority, -work.started, str(work.key)
