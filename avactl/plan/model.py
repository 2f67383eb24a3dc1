"""A plan as data: what would happen to a change's jobs, and to others. Printers read it, nothing computes in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from avactl.plan.spec_origin import Origin

NOTE = "a check, not a reservation: what runs may be different by the time of the merge"


class Verdict(str, Enum):  # noqa: UP042 - printed as its value
    """What becomes of a spec's pods, from best to worst."""

    GOES_ON = "goes on"
    """Nothing starts anew: what runs goes on, if perhaps with fewer pods."""
    STARTS = "starts"
    STOPPED = "stopped"
    """It asks for no pods: suspended, or not running."""
    REMOVED = "removed"
    WAITS = "waits"
    """For something that is neither quota nor room, such as a claim."""
    ROOM = "waits for room"
    QUOTA = "waits for quota"
    NEVER = "never fits"

    @property
    def fine(self) -> bool:
        """Whether everything that is asked for runs."""
        return self in (Verdict.GOES_ON, Verdict.STARTS, Verdict.STOPPED, Verdict.REMOVED)


_ORDER = list(Verdict)


def worst(one: Verdict, other: Verdict) -> Verdict:
    """The worse of two."""
    return max(one, other, key=_ORDER.index)


class Owner(NamedTuple):
    """Which spec pods belong to: kind, team ("" for the platform's), name."""

    kind: str
    team: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.team}/{self.name}" if self.team else f"{self.kind} {self.name}"


class Place(NamedTuple):
    """Where pods are: machines of a pool, and what domains they are in."""

    pool: str
    """Empty: machines of no pool."""
    machines: int
    domains: tuple[str, ...] = ()
    """Names of the narrowest domains that the machines are in, such as racks."""


class Wait(NamedTuple):
    """Pods of a spec that wait, and why."""

    verdict: Verdict
    pods: int
    words: str
    """As the scheduler says it."""
    room: str = ""
    """Where most of what is missing is free: `rack r1 has 3`."""


class Surge(NamedTuple):
    """Whether a rollout of a service has room for its further pods."""

    wanted: int
    """Pods beyond those that run; 0: one stops before the next starts."""
    placed: int
    words: str = ""
    """Why not all of them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPUs, and with prices money. Sums over pods at their most."""

    gpus: dict[str, float] = field(default_factory=dict)
    """GPUs at a time, by model."""
    hours: float | None = None
    """How long it runs at the most; None: nobody says."""
    always: bool = False
    """Whether it runs all the time: then a month counts."""
    per_hour: float | None = None
    """Money; None: there are no prices, or not of all that it uses."""

    @property
    def gpu_hours(self) -> float | None:
        """At the most, of what ends."""
        return None if self.hours is None else sum(self.gpus.values()) * self.hours

    @property
    def at_most(self) -> float | None:
        """Money for the declared hours."""
        return None if self.hours is None or self.per_hour is None else self.per_hour * self.hours


@dataclass(frozen=True, slots=True)
class Entry:
    """What becomes of one spec."""

    owner: Owner
    cluster: str
    change: Literal["added", "changed", "removed", "unchanged"]
    verdict: Verdict
    pods: int
    """Pods that it asks for."""
    placed: int
    """Of these, pods that run or start."""
    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()
    restarts: int = 0
    """Pods that run now, are stopped by the change and made anew."""
    ends: int = 0
    """Pods that run now and are stopped by the change for good, because it asks for fewer."""
    surge: Surge | None = None
    later: bool = False
    """Whether what runs now ends first, and the changed one begins then."""
    cost: Cost = field(default_factory=Cost)
    before: Cost = field(default_factory=Cost)
    """The same of the base."""
    estimated: bool = False
    """Whether kube-scheduler places it, which may choose otherwise."""
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """The spec itself: of the head, or of the base if it is removed."""

    @property
    def file(self) -> str:
        """The file that it stands in."""
        return self.origin.file if self.origin is not None else ""

    @property
    def line(self) -> int:
        """The line where it begins. Found on demand: that reads the file again."""
        return self.origin.line if self.origin is not None else 0


class Effect(NamedTuple):
    """What becomes of a spec that the change does not touch."""

    owner: Owner
    what: Literal["preempted", "shrinks", "restarts", "starts", "stops"]
    """`restarts`: it is preempted, and finds other machines at once. `stops`: its machines are gone. `starts`: it
    waited before."""
    pods: int
    """How many of its pods."""
    of: int
    """Of so many that ran or waited."""
    reason: str = ""
    """`quota-reclaim`, `priority`, … of what is preempted."""
    words: str = ""
    by: Owner | None = None
    """For whom."""


class Pool(NamedTuple):
    """GPUs of a model in a pool."""

    name: str
    model: str
    total: int
    before: float
    """In use without the change."""
    after: float


class Quota(NamedTuple):
    """GPUs of a model that a team has."""

    team: str
    model: str
    before: float
    after: float
    guaranteed: int
    most: int | None
    """Guaranteed and borrowed together; None: no limit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would happen in one cluster."""

    cluster: str
    source: str
    """What it was asked on, in words."""
    entries: tuple[Entry, ...] = ()
    effects: tuple[Effect, ...] = ()
    pools: tuple[Pool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    currency: str = ""
    assumed: tuple[str, ...] = ()
    """What had to be assumed."""

    @property
    def fine(self) -> bool:
        """Whether everything that is new or ran before will run."""
        return all(entry.verdict.fine for entry in self.entries) and all(
            effect.what in ("starts", "restarts") for effect in self.effects
        )

    @property
    def counts(self) -> Counter[Verdict]:
        """Specs by verdict."""
        return Counter(entry.verdict for entry in self.entries)

    @property
    def shown(self) -> tuple[Entry, ...]:
        """The worst first, then by team and name."""
        return tuple(sorted(self.entries, key=lambda e: (-_ORDER.index(e.verdict), e.owner.team, e.owner.name)))
