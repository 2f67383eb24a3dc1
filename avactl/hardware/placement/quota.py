"""Quotas: guarantees, lending and borrowing. Pure accounting of GPUs by model, without placement.

Quotas form a tree: teams are leaves, and the limits of a parent apply to the sum of its children. Guaranteed GPUs that
a team leaves idle are lent to others, up to each one's `borrow`, shared by `weight`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, TypeVar


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """Limit on the GPUs of one model."""

    guaranteed: int
    """Guaranteed GPUs, reclaimed on demand. Includes guaranteed machines (`QuotaShape`) after `QuotaNode.limit`."""
    borrow: int | None = 0
    """Idle GPUs that may be borrowed; None: unlimited."""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class QuotaShape:
    """Guaranteed whole machines."""

    machines: int
    gpus: int
    model: str


_NOTHING = QuotaLimit(0, 0)
_EVERYTHING = QuotaLimit(0, None)


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """A node of the tree."""

    name: str
    limits: Mapping[str, QuotaLimit] = field(default_factory=dict)
    """Limits by GPU model. Models listed neither here nor in `shapes` must not be used."""
    shapes: tuple[QuotaShape, ...] = ()
    parent: str | None = None
    amounts: tuple[int | None, ...] = ()
    """Limits on CPU, memory, … in the order of `AllocationState.resources`; None or omitted: unlimited."""
    per_member: Mapping[str, int] = field(default_factory=dict)
    """GPUs by model that each member of the team may use."""

    def limit(self, model: str) -> QuotaLimit:
        """Return the limit for a model, including guaranteed machines."""
        given = self.limits.get(model, _NOTHING)
        whole = sum(shape.machines * shape.gpus for shape in self.shapes if shape.model == model)
        return replace(given, guaranteed=given.guaranteed + whole) if whole else given


VictimOrder = tuple[bool, bool, bool, int, float, str]


@dataclass(frozen=True, slots=True)
class TeamWorkload:
    """A running or pending job or service: equal members with GPUs of one model."""

    key: Hashable
    team: str
    members: int
    gpus: int = 0
    """GPUs of each member."""
    model: str = ""
    least: int | None = None
    """Minimum members; None: all. The others are elastic surplus."""
    started: float = 0.0
    """Any number that increases with time, so the youngest has the largest."""
    priority: int = 0
    serving: bool = False
    """Services rank above training of any priority."""
    preemptible: bool = True
    """False if it is never stopped as a whole; its surplus can still be reclaimed."""
    amounts: tuple[int, ...] = ()
    """Amounts of each member, in the order of `AllocationState.resources`."""
    protected: bool = False
    """True if stopping it violates a disruption budget: chosen after comparable work that does not."""
    reclaim_only: bool = False
    """True if workloads of its own team do not preempt it, whatever their priority."""
    preempted: bool = False
    """True if an earlier, unfinished preemption already chose it: chosen first."""
    guaranteed_only: bool = False
    """True for non-preemptible work. A team's fits into its guarantee: what the team borrows can be reclaimed."""
    member: str = ""
    """Member of the team whose limit it counts for; empty: of none."""

    @property
    def total(self) -> int:
        """GPUs of all members."""
        return self.members * self.gpus

    @property
    def surplus(self) -> int:
        """Members beyond the minimum."""
        return 0 if self.least is None else max(0, self.members - self.least)

    @property
    def rank(self) -> tuple[bool, int]:
        """Return the rank within the team: higher ranks start first and stop last."""
        return self.serving, self.priority

    @property
    def victim_order(self) -> VictimOrder:
        """Return the sort key among victims of one team: the first is chosen first."""
        return not self.preempted, self.serving, self.protected, self.priority, -self.started, str(self.key)


_victim_order = attrgetter("victim_order")


class QuotaRefusal(NamedTuple):
    """An exceeded limit."""

    quota: str
    resource: str | int
    """A GPU model, or the index of a resource in `AllocationState.resources`."""
    used: int
    asked: int
    limit: int
    guaranteed: int
    """Guaranteed part of the limit."""
    member: str = ""
    """Member of the team whose own limit it is."""


class Ledger:
    """GPU usage by team."""

    def __init__(
        self, quotas: Iterator[QuotaNode] | list[QuotaNode] | tuple[QuotaNode, ...], total: Mapping[str, int]
    ) -> None:
        """`total`: GPUs by model. Raises ValueError for a missing parent or a cycle."""
        self.quotas = {quota.name: quota for quota in quotas}
        self.total = dict(total)
        self.works: dict[Hashable, TeamWorkload] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._guaranteed_only: Counter[tuple[str, str]] = Counter()
        """GPUs of guaranteed-only work, by team and model."""
        self._by_member: Counter[tuple[str, str, str]] = Counter()
        """GPUs by team, member and model, of work that counts for a member."""
        self._amounts: dict[str, list[int]] = {}
        self._victims: dict[str, list[TeamWorkload]] = {}
        """Works in victim order, of the teams for which they have been sorted."""
        for name in self.quotas:
            seen = [name]
            while (parent := self.quotas[seen[-1]].parent) is not None:
                if parent not in self.quotas or parent in seen:
                    why = "is in a cycle" if parent in seen else "does not exist"
                    raise ValueError(f"quota {name}: its parent {parent} {why}")
                seen.append(parent)

    def copy(self) -> Ledger:
        """Return an independent copy."""
        other = Ledger([], self.total)
        other.quotas, other.works, other._used = self.quotas, dict(self.works), dict(self._used)
        other._amounts = {name: list(amounts) for name, amounts in self._amounts.items()}
        other._guaranteed_only = self._guaranteed_only.copy()
        other._by_member = self._by_member.copy()
        return other

    # -- booking ----------------------------------------------------------------------------------------------------

    def start(self, work: TeamWorkload) -> None:
        """Book running work, without checking limits (see `may_start`). Raises ValueError if it already runs."""
        if work.key in self.works:
            raise ValueError(f"{work.key} is already running")
        self.works[work.key] = work
        self._count_members(work, work.members)
        if work.team in self._victims:
            insort(self._victims[work.team], work, key=_victim_order)

    def start_all(self, works: Sequence[TeamWorkload]) -> None:
        """Book many running works at once. Raises ValueError as `start`."""
        new = {work.key: work for work in works}
        if len(new) < len(works) or not self.works.keys().isdisjoint(new):
            raise ValueError("some of the workloads are already running")
        self.works |= new
        self._victims.clear()
        alike = Counter(
            (work.team, work.model, work.gpus, work.amounts, work.members, work.guaranteed_only, work.member)
            for work in works
        )
        for (team, model, gpus, amounts, members, guaranteed_only, member), count in alike.items():
            total = count * members * gpus
            sums = [count * members * amount for amount in amounts]
            self._add_usage(team, model, total, sums, guaranteed_only, member)

    def end(self, key: Hashable) -> TeamWorkload:
        """Release work. Raises KeyError if it does not run."""
        work = self.works.pop(key)
        self._count_members(work, -work.members)
        if work.team in self._victims:
            victims = self._victims[work.team]
            victims.pop(victims.index(work, bisect_left(victims, work.victim_order, key=_victim_order)))
        return work

    def resize(self, key: Hashable, members: int) -> None:
        """Change the number of running members."""
        work = self.works[key]
        self._count_members(work, members - work.members)
        self.works[key] = replace(work, members=members)
        self._victims.pop(work.team, None)

    def _count_members(self, work: TeamWorkload, members: int) -> None:
        amounts = [members * amount for amount in work.amounts]
        self._add_usage(work.team, work.model, members * work.gpus, amounts, work.guaranteed_only, work.member)

    def _add_usage(
        self, team: str, model: str, gpus: int, amounts: Sequence[int], guaranteed_only: bool, member: str
    ) -> None:
        if guaranteed_only:
            _add_count(self._guaranteed_only, (team, model), gpus)
        if member:
            _add_count(self._by_member, (team, member, model), gpus)
        for name in (*self._quota_chain(team), *(() if team in self.quotas else (team,))):
            used = self._used[name, model] = self._used.get((name, model), 0) + gpus
            sums = self._amounts.setdefault(name, [])
            sums += [0] * (len(amounts) - len(sums))
            for index, amount in enumerate(amounts):
                sums[index] += amount
            # Teams come and go: entries of those without usage must not accumulate.
            if not used:
                del self._used[name, model]
            if not any(sums):
                del self._amounts[name]

    def _quota_chain(self, team: str) -> Iterator[str]:
        """Yield the team's quota and its ancestors; nothing for a team without a quota."""
        name = team if team in self.quotas else None
        while name is not None:
            yield name
            name = self.quotas[name].parent

    def line(self, team: str) -> frozenset[str]:
        """Return the names under which a team's work is counted: its own and its ancestors."""
        return frozenset((team, *self._quota_chain(team)))

    # -- queries ----------------------------------------------------------------------------------------------------

    def victims(self, team: str) -> Sequence[TeamWorkload]:
        """Return a team's works in victim order. They are sorted once, and then kept in order."""
        if team not in self._victims:
            self._victims[team] = sorted((work for work in self.works.values() if work.team == team), key=_victim_order)
        return self._victims[team]

    def used(self, name: str, model: str) -> int:
        """Return the GPUs used by a team, or below a parent."""
        return self._used.get((name, model), 0)

    def users(self) -> Iterable[tuple[str, str]]:
        """Return teams and parents with usage, and the GPU models in use."""
        return self._used

    def limit(self, team: str, model: str) -> QuotaLimit:
        """Return a team's limit. Without a quota it has no guarantee, and may borrow all idle GPUs."""
        return self.quotas[team].limit(model) if team in self.quotas else _EVERYTHING

    def borrowed(self, team: str, model: str) -> int:
        """Return the GPUs that a team uses beyond its guarantee."""
        return max(0, self.used(team, model) - self.limit(team, model).guaranteed)

    def may_start(self, work: TeamWorkload) -> list[QuotaRefusal]:
        """Return the limits that prevent work from starting with all members; empty: only capacity is missing."""
        refusals = []
        for name in self._quota_chain(work.team):
            limit, used = self.quotas[name].limit(work.model), self.used(name, work.model)
            most = None if limit.borrow is None else limit.guaranteed + limit.borrow
            kept = self._guaranteed_only[work.team, work.model]
            if work.guaranteed_only and name == work.team and work.total and kept + work.total > limit.guaranteed:
                refusals.append(QuotaRefusal(name, work.model, kept, work.total, limit.guaranteed, limit.guaranteed))
            elif work.total and most is not None and used + work.total > most:
                refusals.append(QuotaRefusal(name, work.model, used, work.total, most, limit.guaranteed))
            own = self.quotas[name].per_member.get(work.model) if work.member and name == work.team else None
            if own is not None and work.total:
                mine = self._by_member[work.team, work.member, work.model]
                if mine + work.total > own:
                    refusals.append(QuotaRefusal(name, work.model, mine, work.total, own, own, work.member))
            for index, (most_of, amount) in enumerate(zip(self.quotas[name].amounts, work.amounts, strict=False)):
                have = self._amounts.get(name, [])
                now = have[index] if index < len(have) else 0
                if most_of is not None and amount and now + work.members * amount > most_of:
                    refusals.append(QuotaRefusal(name, index, now, work.members * amount, most_of, most_of))
        return refusals

    def shares(self, model: str, wanting: str | None = None, asked: int = 0) -> dict[str, float]:
        """Return each team's fair share of a model: its guarantee, plus by weight a part of the idle guarantees.

        `wanting` requests `asked` more GPUs. Parts go to the borrowing teams and to `wanting`, none beyond its limit;
        the excess is redistributed (weighted max-min fairness).
        """
        teams = {work.team for work in self.works.values() if work.model == model} | ({wanting} if wanting else set())
        limits = {team: self.limit(team, model) for team in sorted(teams)}
        idle = self.total.get(model, 0) - sum(
            min(self.used(team, model) + (asked if team == wanting else 0), limit.guaranteed)
            for team, limit in limits.items()
        )
        due = {team: float(limit.guaranteed) for team, limit in limits.items()}
        unmet = {
            team: float("inf") if limits[team].borrow is None else float(limits[team].borrow or 0)
            for team in limits
            if self.borrowed(team, model) or team == wanting
        }
        left = float(max(0, idle))
        while unmet and left > 1e-9:
            weights = sum(limits[team].weight for team in unmet)
            part = {team: left * limits[team].weight / weights for team in unmet}
            full = [team for team in unmet if part[team] >= unmet[team]]
            for team in full or list(unmet):
                got = min(part[team], unmet[team])
                due[team] += got
                left -= got
            if not full:
                break
            for team in full:
                del unmet[team]
        return due


_Key = TypeVar("_Key", bound=Hashable)


def _add_count(counts: Counter[_Key], key: _Key, change: int) -> None:
    """Change a count, and remove it if it is zero: teams and members come and go."""
    counts[key] += change
    if not counts[key]:
        del counts[key]
