"""Effects of scheduling decisions: the daemon carries them out through the API server, `avactl plan` in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from avactl.scheduler.dra.resource_claim import ResourceClaim
from avactl.scheduler.objects.pod_info import PodInfo


class ClaimAllocation(NamedTuple):
    """A ResourceClaim of a pod that is to be bound."""

    claim: ResourceClaim
    allocation: dict[str, Any] | None
    """Allocation to write; None if it is allocated already and is only reserved for one more pod."""


class BindRequest(NamedTuple):
    """A pod to be bound."""

    pod: PodInfo
    node: str
    devices: str
    """GPU indexes, for the annotation; empty: none."""
    since: float
    claims: tuple[ClaimAllocation, ...] = ()
    volumes: tuple[str, ...] = ()
    """PersistentVolumeClaims that get their volume once they know the node."""


class Victim(NamedTuple):
    """A pod that must go."""

    pod: PodInfo
    why: str
    """`elastic`, `quota-reclaim` or `priority`; `resumed` or `defrag` where others have chosen: label of the metric."""
    note: str
    """Message of its condition and its event."""


class Eviction(NamedTuple):
    """Pods that go so that a unit starts. First the unit's pods are nominated, then the victims marked, then deleted:
    whoever finds this half done knows from the API server alone what it was for."""

    unit: str
    """Key of the pod's or gang's Unit."""
    preemption: str
    """Value of the annotation `names.PREEMPTION` on nominated pods and victims."""
    places: Mapping[PodInfo, str]
    """Node that each of its pods is to have."""
    victims: Sequence[Victim]


class BindingSink(Protocol):
    """Sends decisions."""

    def put(self, order: BindRequest) -> None:
        """Bind a pod that is assumed (`ClusterCache.assume`)."""

    def give_back(self, pod: PodInfo, claims: Sequence[ResourceClaim]) -> None:
        """Deallocate claims that nobody but this pod uses, which waits."""


class EvictionSink(Protocol):
    """Makes room."""

    def evict(self, eviction: Eviction) -> None:
        """Nominate, mark, delete. What becomes of the victims is told by the pods themselves (`Intake`)."""

    def clear(self, pods: Sequence[PodInfo]) -> None:
        """Take back the nomination of pods that wait."""


class StatusSink(Protocol):
    """Says why pods wait."""

    def unschedulable(self, pod: PodInfo, message: str) -> None:
        """A pod waits, and why."""

    def not_yet(self, pod: PodInfo, message: str) -> None:
        """A pod waits for something on its way: it is told if that takes long."""
