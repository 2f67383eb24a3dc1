"""Choose victims so that work can start. Returns data; stops nothing.

In this order, as far as needed:

1. Elastic surplus of the own team, of work that does not rank above.
2. Borrowed GPUs of other teams: from the team that most exceeds its share, elastic surplus first, then whole work,
   the youngest first (services last, then by priority). Work within its team's guarantee comes last.
3. Whole work of the own team that ranks below.

If the team is entitled to others' GPUs only once some of its own work has stopped, as much of that comes before 2.
Work that a disruption budget protects comes after comparable work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from typing import Literal, NamedTuple

from avactl.hardware.placement.quota import Ledger, TeamWorkload

Why = Literal["surplus", "borrowed", "priority"]


class Reclaim(NamedTuple):
    """Members to reclaim from one workload."""

    key: Hashable
    members: int
    """Number of members."""
    whole: bool
    """True if all members are reclaimed."""
    why: Why


Enough = Callable[[Sequence[Reclaim]], bool]
Near = Callable[[Sequence[Reclaim]], Sequence[Reclaim]]
Hopeful = Callable[[Reclaim], bool]

GROWTH = 8
"""Factor by which the number of tried reclaims grows until they suffice."""


def make_room(
    ledger: Ledger,
    work: TeamWorkload,
    free: int = 0,
    enough: Enough | None = None,
    near: Near | None = None,
    hopeful: Hopeful | None = None,
) -> list[Reclaim] | None:
    """Return the reclaims after which `work` can start; [] if none are needed, None if all would not suffice.

    `enough(reclaims)` returns whether the work can be placed once these are gone; by default, GPUs of its model are
    counted, of which `free` are free now. The plan is minimal: without any one reclaim, or with one member less, it
    would not suffice. `near(reclaims)` returns those on the nodes where the work would be placed, a shortcut that
    avoids trying the others one by one. `hopeful(reclaim)` is called with one reclaim after the other, and returns
    False while all so far cannot free a place, a shortcut that avoids trying them. About log(reclaims) trials to find a
    plan, each of at most `GROWTH` times the reclaims that suffice, and a few per reclaim.
    """
    planner = _ReclaimPlanner(ledger, work, free, enough)
    if planner.suffices([]):
        return []
    source = planner.candidates()
    steps: list[Reclaim] = []
    # If only limits stop the work, victims need not be where it would be placed.
    if hopeful is not None and (planner.within_limits or enough is None or not enough([])):
        for step in source:
            steps.append(step)
            if hopeful(step):
                break
        else:
            return None
    least = max(0, len(steps) - 1)
    while not (steps and planner.suffices(_merge_by_work(steps))):
        least = len(steps)
        steps += islice(source, max(1, least * (GROWTH - 1)))
        if len(steps) == least:
            return None
    # The shortest sufficient prefix, of which `least` reclaims do not suffice: more reclaims never reduce capacity.
    last = bisect_left(
        range(len(steps) - 1), True, least, key=lambda index: planner.suffices(_merge_by_work(steps[: index + 1]))
    )
    takes = _merge_by_work(steps[: last + 1])
    if near is not None:
        fewer = list(near(takes))
        if len(fewer) < len(takes) and planner.suffices(fewer):
            takes = fewer
    return planner.minimize(takes)


def after(ledger: Ledger, takes: Sequence[Reclaim]) -> Ledger:
    """Return the ledger after these reclaims."""
    left = ledger.copy()
    for take in takes:
        if take.whole:
            left.end(take.key)
        else:
            left.resize(take.key, left.works[take.key].members - take.members)
    return left


def _merge_by_work(steps: Sequence[Reclaim]) -> list[Reclaim]:
    """Merge to one reclaim per work: more members replace fewer."""
    takes: dict[Hashable, Reclaim] = {}
    for take in steps:
        takes.pop(take.key, None)
        takes[take.key] = take
    return list(takes.values())


class _ReclaimPlanner:
    """Plans the reclaims for one workload."""

    def __init__(self, ledger: Ledger, work: TeamWorkload, free: int, enough: Enough | None) -> None:
        self.ledger, self.work, self.free, self.enough = ledger, work, free, enough
        self.line = ledger.line(work.team)
        self.within_limits = not ledger.may_start(work)
        # Whether the team may reclaim from others while all of its own work keeps running.
        self.entitled = self._entitlement([]) is not None

    @cached_property
    def after(self) -> Ledger:
        """Return the ledger after the elastic and the borrowed work that was chosen so far."""
        return self.ledger.copy()

    def suffices(self, takes: Sequence[Reclaim]) -> bool:
        """Return True if the work can start after these reclaims."""
        if not self.entitled:
            own = [take for take in takes if self.ledger.works[take.key].team == self.work.team]
            if len(own) < len(takes) and self._entitlement(own) is None:
                return False
        if not self.within_limits:
            # Only work that shares a limit with this one can block it.
            counted = [take for take in takes if self.ledger.line(self.ledger.works[take.key].team) & self.line]
            if not counted or after(self.ledger, counted).may_start(self.work):
                return False
        if self.enough is not None:
            return self.enough(takes)
        freed = sum(take.members * self.ledger.works[take.key].gpus for take in takes)
        return self.free + freed >= self.work.total

    # -- order ------------------------------------------------------------------------------------------------------

    def candidates(self) -> Iterator[Reclaim]:
        """Yield all possible reclaims in order; a later reclaim of a work includes the earlier ones."""
        own, rank = self.work.team, self.work.rank
        mine = self.ledger.victims(own)
        surplus = self._surplus_members([work for work in mine if work.model == self.work.model and work.rank <= rank])
        lower = self._lower_works(mine)
        if not self.work.total:
            yield from surplus
            yield from lower
            return
        first: list[Reclaim] = []
        if not self.entitled:
            rest = list(lower)
            count = bisect_left(
                range(len(rest)), True, key=lambda count: self._entitlement([*surplus, *rest[:count]]) is not None
            )
            first, lower = rest[:count], iter(rest[count:])
        takes = [*surplus, *first]
        yield from takes
        yield from self._reclaim_borrowed(takes)
        yield from lower

    def _lower_works(self, mine: Sequence[TeamWorkload]) -> Iterator[Reclaim]:
        """Yield whole work of the own team that ranks below, first that with the same GPU model."""
        model, rank = self.work.model, self.work.rank
        same = (work for work in mine if work.model == model)
        # Work without GPUs can block work with GPUs, and the reverse.
        other = (work for work in mine if work.model != model and not (work.total and self.work.total))
        for work in chain(same, other):
            if work.preemptible and not work.reclaim_only and work.rank < rank:
                yield self._reclaim_whole(work, "priority")

    def _surplus_members(self, works: list[TeamWorkload]) -> list[Reclaim]:
        """Return elastic surplus, one member at a time, of the first work in order."""
        return [self._reclaim_member(work) for work in works for _ in range(work.surplus)]

    def _entitlement(self, takes: Sequence[Reclaim]) -> tuple[bool, dict[str, float]] | None:
        """Return if the guarantee covers the work after reclaims from its own team, and the shares of all teams.

        None if the team may not reclaim from others: it would exceed its share, or the work needs no GPUs.
        """
        if not self.work.total:
            return None
        model, own = self.work.model, self.work.team
        mine = {take.key: take.members * self.ledger.works[take.key].gpus for take in takes}
        freed = sum(gpus for key, gpus in mine.items() if self.ledger.works[key].model == model)
        used = self.ledger.used(own, model) - freed + self.work.total
        guaranteed = used <= self.ledger.limit(own, model).guaranteed
        due = self.ledger.shares(model, own, self.work.total - freed)
        return (guaranteed, due) if guaranteed or used <= due[own] else None

    def _reclaim_borrowed(self, own_takes: Sequence[Reclaim]) -> Iterator[Reclaim]:
        model, own = self.work.model, self.work.team
        entitlement = self._entitlement(own_takes)
        if entitlement is None:
            return
        guaranteed, due = entitlement
        # Borrowing teams return guaranteed GPUs; the shares determine the turn.
        kept = {team: self.ledger.limit(team, model).guaranteed if guaranteed else due[team] for team in due}
        givers = {
            team: _BorrowingTeam(
                [work for work in self.ledger.victims(team) if work.model == model], self.after, guaranteed
            )
            for team in due
            if team != own
        }
        while givers:
            # The team that most exceeds its share.
            team = min(givers, key=lambda team: (due[team] - self.after.used(team, model), team))
            over = self.after.used(team, model) - kept[team]
            surplus, work = givers[team].next(over) if over > 0 else (False, None)
            if work is None:
                del givers[team]
            else:
                yield self._reclaim_member(work) if surplus else self._reclaim_whole(work, "borrowed")

    def _reclaim_member(self, work: TeamWorkload) -> Reclaim:
        left = self.after.works[work.key].members - 1
        self.after.resize(work.key, left)
        return Reclaim(work.key, work.members - left, False, "surplus")

    def _reclaim_whole(self, work: TeamWorkload, why: Why) -> Reclaim:
        if why == "borrowed":
            self.after.end(work.key)
        return Reclaim(work.key, work.members, True, why)

    # -- minimisation -----------------------------------------------------------------------------------------------

    def minimize(self, takes: list[Reclaim]) -> list[Reclaim]:
        """Drop unnecessary reclaims: spare whole works first, of them the last in order."""
        last_first = takes[::-1]
        last_first.sort(key=lambda take: not take.whole)
        needed = self._drop_unnecessary(takes, last_first)
        for key in [take.key for take in last_first]:
            take = next((take for take in needed if take.key == key), None)
            if take is None:
                continue
            others, work = [other for other in needed if other.key != key], self.ledger.works[key]
            most = work.surplus if take.whole else take.members - 1
            fewer = [Reclaim(key, members, False, "surplus") for members in range(1, most + 1)]
            least = bisect_left(fewer, True, key=partial(self._suffices_with, others))
            if least < most:
                needed = [fewer[least] if other.key == key else other for other in needed]
        return needed

    def _suffices_with(self, others: list[Reclaim], take: Reclaim) -> bool:
        return self.suffices([*others, take])

    def _drop_unnecessary(self, takes: list[Reclaim], doubtful: list[Reclaim]) -> list[Reclaim]:
        """Drop those of the doubtful reclaims that are unnecessary, tried in order, many at once."""
        keys = {take.key for take in doubtful}
        without = [take for take in takes if take.key not in keys]
        if self.suffices(without):
            return without
        if len(doubtful) == 1:
            return takes
        half = len(doubtful) // 2
        takes = self._drop_unnecessary(takes, doubtful[:half])
        return self._drop_unnecessary(takes, doubtful[half:])


class _BorrowingTeam:
    """Yields one team's reclaims in order: elastic surplus, then whole works."""

    def __init__(self, works: Iterable[TeamWorkload], after: Ledger, guaranteed: bool) -> None:
        """`works`: in victim order.

        `guaranteed`: to restore a guarantee, a team may lose more than it exceeds if it has nothing smaller.
        """
        self._after, self._guaranteed = after, guaranteed
        self._elastic = deque(work for work in works for _ in range(work.surplus))
        self._whole = deque(work for work in works if work.preemptible and work.total)
        self._large: deque[TeamWorkload] = deque()

    def next(self, over: float) -> tuple[bool, TeamWorkload | None]:
        """Return (one member?, work) for a team that exceeds its share by `over`, which must not increase."""
        while self._elastic:
            work = self._elastic.popleft()
            if self._guaranteed or work.gpus <= over:
                return True, work
        while self._whole:
            work = self._whole.popleft()
            if self._after.works[work.key].total <= over:
                return False, work
            self._large.append(work)
        return False, self._large.popleft() if self._guaranteed and self._large else None
