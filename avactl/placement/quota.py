"""Quotas: what a team may start, and what it lends out and borrows. Pure accounting of GPUs by model; no placement.

A tree: teams are its leaves, and above them may stand parents, whose limits hold for all below together. GPUs that a
team is guaranteed and leaves idle are lent to others, up to each one's `borrow`; `weight` says who has how much of what
is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Limit:
    """GPUs of one model."""

    guaranteed: int
    """What comes back when it is wanted. Whole machines (`Shape`) count here too, once added by `Quota.limit`."""
    borrow: int | None = 0
    """What may be taken beside it while it is idle; None: all."""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Guaranteed whole machines."""

    machines: int
    gpus: int
    model: str


_NOTHING = Limit(0, 0)
_EVERYTHING = Limit(0, None)


@dataclass(frozen=True, slots=True)
class Quota:
    """A node of the tree."""

    name: str
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By GPU model. A model that is neither here nor in `shapes` must not be used."""
    shapes: tuple[Shape, ...] = ()
    parent: str | None = None
    amounts: tuple[int | None, ...] = ()
    """Most of CPU, memory, … in all, in the order of `State.resources`; None or left out: no limit."""

    def limit(self, model: str) -> Limit:
        """What it gives of a model, whole machines included."""
        given = self.limits.get(model, _NOTHING)
        whole = sum(shape.machines * shape.gpus for shape in self.shapes if shape.model == model)
        return replace(given, guaranteed=given.guaranteed + whole) if whole else given


@dataclass(frozen=True, slots=True)
class TeamWorkload:
    """A job or service that runs or wants to: equal members with GPUs of one model."""

    key: Hashable
    team: str
    members: int
    gpus: int = 0
    """Of each member."""
    model: str = ""
    least: int | None = None
    """Members below which it does not run; None: all. The others are elastic surplus."""
    started: float = 0.0
    """Any number that grows with time: the greatest is the youngest."""
    priority: int = 0
    serving: bool = False
    """Services stand above training of any priority."""
    preemptible: bool = True
    """Work that must not be stopped runs on guaranteed GPUs only; its surplus can always be taken."""
    amounts: tuple[int, ...] = ()
    """Of each member, in the order of `State.resources`."""
    protected: bool = False
    """Whether stopping it breaks a disruption budget: it goes after those of its kind that are free to go."""
    preempted: bool = False
    """Whether it has been told to go already, by somebody who did not come to the end of it: it goes first."""

    @property
    def total(self) -> int:
        """GPUs of all members."""
        return self.members * self.gpus

    @property
    def surplus(self) -> int:
        """Members that it can do without."""
        return 0 if self.least is None else max(0, self.members - self.least)

    @property
    def rank(self) -> tuple[bool, int]:
        """Who goes first in a team: the greater."""
        return self.serving, self.priority


class Refusal(NamedTuple):
    """A limit in the way."""

    quota: str
    resource: str | int
    """A GPU model, or the index of a resource in `State.resources`."""
    used: int
    asked: int
    limit: int
    guaranteed: int
    """Part of the limit that is guaranteed."""


class Ledger:
    """Who uses how much."""

    def __init__(self, quotas: Iterator[Quota] | list[Quota] | tuple[Quota, ...], total: Mapping[str, int]) -> None:
        """`total`: GPUs there are, by model. Raises ValueError for a parent that is not there, or above itself."""
        self.quotas = {quota.name: quota for quota in quotas}
        self.total = dict(total)
        self.works: dict[Hashable, TeamWorkload] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._amounts: dict[str, list[int]] = {}
        for name in self.quotas:
            seen = [name]
            while (parent := self.quotas[seen[-1]].parent) is not None:
                if parent not in self.quotas or parent in seen:
                    raise ValueError(
                        f"quota {name}: its parent {parent} is {'above itself' if parent in seen else 'not there'}"
                    )
                seen.append(parent)

    def copy(self) -> Ledger:
        """An independent ledger to try things on."""
        other = Ledger([], self.total)
        other.quotas, other.works, other._used = self.quotas, dict(self.works), dict(self._used)
        other._amounts = {name: list(amounts) for name, amounts in self._amounts.items()}
        return other

    # -- booking ----------------------------------------------------------------------------------------------------

    def start(self, work: TeamWorkload) -> None:
        """It runs now. Whether it may is asked before (`may_start`); raises ValueError where it runs already."""
        if work.key in self.works:
            raise ValueError(f"{work.key} runs already")
        self.works[work.key] = work
        self._count(work, work.members)

    def start_all(self, works: Sequence[TeamWorkload]) -> None:
        """They run now, as with `start`; counted at once, for thousands of them."""
        new = {work.key: work for work in works}
        if len(new) < len(works) or not self.works.keys().isdisjoint(new):
            raise ValueError("some of them run already")
        self.works |= new
        alike = Counter((work.team, work.model, work.gpus, work.amounts, work.members) for work in works)
        for (team, model, gpus, amounts, members), count in alike.items():
            self._add(team, model, count * members * gpus, [count * members * amount for amount in amounts])

    def end(self, key: Hashable) -> TeamWorkload:
        """It runs no more. Raises KeyError where it did not."""
        work = self.works.pop(key)
        self._count(work, -work.members)
        return work

    def resize(self, key: Hashable, members: int) -> None:
        """It has so many members now."""
        work = self.works[key]
        self._count(work, members - work.members)
        self.works[key] = replace(work, members=members)

    def _count(self, work: TeamWorkload, members: int) -> None:
        self._add(work.team, work.model, members * work.gpus, [members * amount for amount in work.amounts])

    def _add(self, team: str, model: str, gpus: int, amounts: Sequence[int]) -> None:
        for name in (*self._line(team), *(() if team in self.quotas else (team,))):
            used = self._used[name, model] = self._used.get((name, model), 0) + gpus
            sums = self._amounts.setdefault(name, [])
            sums += [0] * (len(amounts) - len(sums))
            for index, amount in enumerate(amounts):
                sums[index] += amount
            # Teams come and go.
            if not used:
                del self._used[name, model]
            if not any(sums):
                del self._amounts[name]

    def _line(self, team: str) -> Iterator[str]:
        """The team's quota and those above it; none for a team without a quota."""
        name = team if team in self.quotas else None
        while name is not None:
            yield name
            name = self.quotas[name].parent

    def line(self, team: str) -> frozenset[str]:
        """Names under which a team's works count: its own, and those above it."""
        return frozenset((team, *self._line(team)))

    # -- asking -----------------------------------------------------------------------------------------------------

    def used(self, name: str, model: str) -> int:
        """GPUs in use by a team, or below a parent."""
        return self._used.get((name, model), 0)

    def users(self) -> Iterable[tuple[str, str]]:
        """Teams and parents of which GPUs are in use, and the models of these."""
        return self._used

    def limit(self, team: str, model: str) -> Limit:
        """A team's limit. Without a quota it has no guarantee, and may borrow all that is idle."""
        return self.quotas[team].limit(model) if team in self.quotas else _EVERYTHING

    def borrowed(self, team: str, model: str) -> int:
        """GPUs that a team has beyond its guarantee."""
        return max(0, self.used(team, model) - self.limit(team, model).guaranteed)

    def may_start(self, work: TeamWorkload) -> list[Refusal]:
        """Limits in the way of a work with all of its members; none: it may start as soon as it finds GPUs."""
        refusals = []
        for name in self._line(work.team):
            limit, used = self.quotas[name].limit(work.model), self.used(name, work.model)
            borrow = limit.borrow if work.preemptible or name != work.team else 0
            if work.total and borrow is not None and used + work.total > limit.guaranteed + borrow:
                most = limit.guaranteed + borrow
                refusals.append(Refusal(name, work.model, used, work.total, most, limit.guaranteed))
            for index, (most_of, amount) in enumerate(zip(self.quotas[name].amounts, work.amounts, strict=False)):
                have = self._amounts.get(name, [])
                now = have[index] if index < len(have) else 0
                if most_of is not None and amount and now + work.members * amount > most_of:
                    refusals.append(Refusal(name, index, now, work.members * amount, most_of, most_of))
        return refusals

    def shares(self, model: str, wanting: str | None = None, asked: int = 0) -> dict[str, float]:
        """What each team is due of a model: its guarantee, and by weight its part of what owners leave idle.

        `wanting` asks for `asked` GPUs more. Parts go to the teams that borrow now, and to it; nobody is due more than
        its limit, and what one cannot have goes to the others (weighted max-min fairness).
        """
        teams = {work.team for work in self.works.values() if work.model == model} | ({wanting} if wanting else set())
        limits = {team: self.limit(team, model) for team in sorted(teams)}
        idle = self.total.get(model, 0) - sum(
            min(self.used(team, model) + (asked if team == wanting else 0), limit.guaranteed)
            for team, limit in limits.items()
        )
        due = {team: float(limit.guaranteed) for team, limit in limits.items()}
        open_ = {
            team: float("inf") if limits[team].borrow is None else float(limits[team].borrow or 0)
            for team in limits
            if self.borrowed(team, model) or team == wanting
        }
        left = float(max(0, idle))
        while open_ and left > 1e-9:
            weights = sum(limits[team].weight for team in open_)
            part = {team: left * limits[team].weight / weights for team in open_}
            full = [team for team in open_ if part[team] >= open_[team]]
            for team in full or list(open_):
                got = min(part[team], open_[team])
                due[team] += got
                left -= got
            if not full:
                break
            for team in full:
                del open_[team]
        return due
