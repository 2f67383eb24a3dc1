"""Interfaces for the effects of decisions: API requests in the daemon, in-memory changes in `avactl plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from avactl.scheduler.dra.resource_claim import ResourceClaim
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason


class ClaimAllocation(NamedTuple):
    """A ResourceClaim of a pod to bind."""

    claim: ResourceClaim
    allocation: dict[str, Any] | None
    """Allocation to write; None if the claim is already allocated and only reserved for another pod."""
    mappings: tuple[dict[str, str], ...] = ()
    """Requests of a claim of extended resources by container, for the pod's status; empty for other claims."""


class BindRequest(NamedTuple):
    """A pod to bind."""

    pod: PodInfo
    node: str
    devices: str
    """GPU indexes for the annotation; may be empty."""
    since: float
    claims: tuple[ClaimAllocation, ...] = ()
    volumes: tuple[str, ...] = ()
    """PersistentVolumeClaims to bind to a volume on the node."""


class Victim(NamedTuple):
    """A pod to evict."""

    pod: PodInfo
    why: str
    """Reason label of the metric: `elastic`, `quota-reclaim`, `priority`, `resumed` or `defrag`."""
    note: str
    """Message for its condition and event."""


class Eviction(NamedTuple):
    """Eviction of pods for a scheduling unit: nominate its pods, mark the victims, then delete them.

    In this order, an interrupted eviction can be resumed from the state of the API server alone."""

    unit: str
    """Key of the `QueuedPodGroup` to start."""
    preemption: str
    """Value of the annotation `PREEMPTION` on nominated pods and victims."""
    places: Mapping[PodInfo, str]
    """Nominated node of each of its pods."""
    victims: Sequence[Victim]


class BindingSink(Protocol):
    """Executes bindings."""

    def put(self, order: BindRequest) -> None:
        """Bind an assumed pod (`ClusterCache.assume`)."""

    def give_back(self, pod: PodInfo, claims: Sequence[ResourceClaim]) -> None:
        """Deallocate the claims that only this pending pod uses, and delete that of its extended resources."""


class EvictionSink(Protocol):
    """Executes evictions."""

    def evict(self, eviction: Eviction) -> None:
        """Nominate, mark and delete. Pod events report the result (`PodHandler`)."""

    def clear(self, pods: Sequence[PodInfo]) -> None:
        """Clear the nomination of pending pods."""


class StatusSink(Protocol):
    """Reports why pods are pending."""

    def unschedulable(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Report an unschedulable pod and the reason."""

    def not_yet(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Report a pod that waits for an expected event, once that takes long."""
