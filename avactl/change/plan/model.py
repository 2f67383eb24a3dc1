"""A plan as data: the predicted effect on the change's specs and on others. Printers only format it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from avactl.change.plan.spec_origin import SpecOrigin

NOTE = "a check, not a reservation: the cluster may have changed by the time of the merge"


class PlanVerdict(str, Enum):  # noqa: UP042 - printed as its value
    """Predicted state of a spec's pods, from best to worst."""

    GOES_ON = "goes on"
    """Nothing is started: running pods continue, possibly fewer of them."""
    STARTS = "starts"
    LATER = "starts later"
    """Waits for what its spec names: Jobs that run, or datasets that are being cached."""
    STOPPED = "stopped"
    """The spec requests no pods: it is suspended or scaled to zero."""
    REMOVED = "removed"
    WAITS = "waits"
    """Waits for neither quota nor capacity, but for example for a claim, or for a Job that has failed."""
    ROOM = "waits for capacity"
    QUOTA = "waits for quota"
    NEVER = "never fits"

    @property
    def fine(self) -> bool:
        """Return whether all requested pods run, or will without anyone's doing."""
        return _VERDICT_ORDER.index(self) < _VERDICT_ORDER.index(PlanVerdict.WAITS)


_VERDICT_ORDER = list(PlanVerdict)


def worse_verdict(one: PlanVerdict, other: PlanVerdict) -> PlanVerdict:
    """Return the worse of two verdicts."""
    return max(one, other, key=_VERDICT_ORDER.index)


class PlannedOwner(NamedTuple):
    """Identity of the spec that pods belong to: kind, team ("" for the platform), name."""

    kind: str
    team: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.team}/{self.name}" if self.team else f"{self.kind} {self.name}"


class PlannedPlace(NamedTuple):
    """Machines of one pool that pods run on, and the topology domains of these machines."""

    pool: str
    """Name of the pool; empty for machines outside all pools."""
    machines: int
    domains: tuple[str, ...] = ()
    """Names of the narrowest domains that contain the machines, such as racks."""


class Wait(NamedTuple):
    """Pending pods of a spec, and the reason."""

    verdict: PlanVerdict
    pods: int
    words: str
    """The scheduler's message."""
    room: str = ""
    """Domains with the most free capacity: `rack r1 has 3`."""


class Surge(NamedTuple):
    """Capacity for the surge pods of a service's rollout."""

    wanted: int
    """Pods beyond those that run; 0: one pod stops before the next starts."""
    placed: int
    words: str = ""
    """Reason if not all of them fit."""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPUs, and cost if prices are declared, summed over the pods at their largest number."""

    gpus: dict[str, float] = field(default_factory=dict)
    """Concurrent GPUs by model."""
    hours: float | None = None
    """Longest run time; None: unlimited."""
    always: bool = False
    """True if it runs continuously, so that its cost is per month."""
    per_hour: float | None = None
    """Cost; None: a price is missing. Of pods that may run on spot machines or elsewhere: without spot machines."""
    on_spot: float | None = None
    """Cost if all pods that may run on spot machines do; None: as `per_hour`."""

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours at most; None without a time limit."""
        return None if self.hours is None else sum(self.gpus.values()) * self.hours

    @property
    def at_most(self) -> float | None:
        """Cost for the declared hours."""
        return None if self.hours is None or self.per_hour is None else self.per_hour * self.hours


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """Prediction for one spec."""

    owner: PlannedOwner
    cluster: str
    change: Literal["added", "changed", "removed", "unchanged"]
    verdict: PlanVerdict
    pods: int
    """Requested pods."""
    placed: int
    """Requested pods that run or start."""
    places: tuple[PlannedPlace, ...] = ()
    waits: tuple[Wait, ...] = ()
    restarts: int = 0
    """Running pods that the change restarts."""
    ends: int = 0
    """Running pods that the change stops for good, because it requests fewer."""
    reclaimable: int = 0
    """Placed pods on spot machines, which the provider may take back."""
    surge: Surge | None = None
    later: bool = False
    """True if the current run finishes before the changed one starts."""
    cost: Cost = field(default_factory=Cost)
    before: Cost = field(default_factory=Cost)
    """Cost of the base."""
    estimated: bool = False
    """True if kube-scheduler places it, which may decide differently."""
    origin: SpecOrigin | None = field(default=None, compare=False, repr=False)
    """The spec: of the head, or of the base if it was removed."""

    @property
    def file(self) -> str:
        """Return the file of the spec."""
        return self.origin.file if self.origin is not None else ""

    @property
    def line(self) -> int:
        """Return the first line of the spec. Computed on demand, because it reads the file again."""
        return self.origin.line if self.origin is not None else 0


class Effect(NamedTuple):
    """Effect of the change on a spec that it does not edit."""

    owner: PlannedOwner
    what: Literal["preempted", "shrinks", "restarts", "starts", "stops"]
    """`restarts`: preempted, and rescheduled elsewhere at once. `stops`: its machines are removed. `starts`: it was
    pending before."""
    pods: int
    """Affected pods."""
    of: int
    """Out of this many running or pending pods."""
    reason: str = ""
    """Reason of a preemption: `quota-reclaim`, `priority`, …"""
    words: str = ""
    by: PlannedOwner | None = None
    """The spec that preempts it."""


class PlannedPool(NamedTuple):
    """Usage of one GPU model in a pool."""

    name: str
    model: str
    total: int
    before: float
    """GPUs in use without the change."""
    after: float


class PlannedQuota(NamedTuple):
    """Usage of one GPU model by a team."""

    team: str
    model: str
    before: float
    after: float
    guaranteed: int
    most: int | None
    """Guaranteed plus borrowable GPUs; None: unlimited."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Prediction for one cluster."""

    cluster: str
    source: str
    """Description of the cluster state that the plan is based on."""
    entries: tuple[PlanEntry, ...] = ()
    effects: tuple[Effect, ...] = ()
    pools: tuple[PlannedPool, ...] = ()
    quotas: tuple[PlannedQuota, ...] = ()
    currency: str = ""
    assumed: tuple[str, ...] = ()
    """Assumptions, as sentences."""
    uncounted: str = ""
    """A sentence about GPUs that the plan does not count; empty if there are none."""

    @property
    def fine(self) -> bool:
        """Return whether all specs that are new or ran before will run."""
        return all(entry.verdict.fine for entry in self.entries) and all(
            effect.what in ("starts", "restarts") for effect in self.effects
        )

    @property
    def counts(self) -> Counter[PlanVerdict]:
        """Count the specs by verdict."""
        return Counter(entry.verdict for entry in self.entries)

    @property
    def shown(self) -> tuple[PlanEntry, ...]:
        """Return the entries to show, the worst first, then by team and name."""
        return tuple(sorted(self.entries, key=lambda e: (-_VERDICT_ORDER.index(e.verdict), e.owner.team, e.owner.name)))
