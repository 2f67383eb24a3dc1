"""The list of constraints, and the constraints of one cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.allocated_claims import AllocatedClaims
from avactl.scheduler.constraints.cached_datasets import CachedDatasets
from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter, Watch
from avactl.scheduler.constraints.job_order import JobOrder
from avactl.scheduler.constraints.owned_gangs import OwnedGangs
from avactl.scheduler.constraints.pod_groups import PodGroups
from avactl.scheduler.constraints.pod_topology import PodTopology
from avactl.scheduler.constraints.volume_access import VolumeAccess
from avactl.scheduler.objects.pod_info import PodInfo

CONSTRAINTS: tuple[type[Constraint], ...] = (
    PodGroups,
    OwnedGangs,
    JobOrder,
    PodTopology,
    AllocatedClaims,
    VolumeAccess,
    CachedDatasets,
)
"""All constraints, in the order in which they are asked and their reasons are named."""

_Kind = TypeVar("_Kind", bound=Constraint)


class ConstraintSet:
    """The constraints of one cluster: of the daemon, of a plan, or of a one-time view."""

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy, declared: bool = False) -> None:
        """`declared`: leave out the constraints whose state only a live cluster has."""
        kinds = [kind for kind in CONSTRAINTS if kind.enabled(policy) and (kind.declared or not declared)]
        self._all = [kind(cache, policy) for kind in kinds]
        self._ready = self._overriding(Constraint.check_ready)
        self._filters = self._overriding(Constraint.filter_nodes)
        self._scorers = self._overriding(Constraint.score_nodes)
        self._spreading = self._overriding(Constraint.replica_nodes)
        self._outweighing = self._overriding(Constraint.outweighs_closeness)

    def _overriding(self, question: Callable[..., object]) -> list[Constraint]:
        """Return the constraints that answer a question. Every decision asks: the others are not asked it."""
        return [each for each in self._all if getattr(type(each), question.__name__) is not question]

    def get(self, kind: type[_Kind]) -> _Kind:
        """Return the constraint of a class."""
        return next(each for each in self._all if isinstance(each, kind))

    def watches(self) -> list[Watch]:
        """Return the objects that the constraints watch."""
        return [watch for constraint in self._all for watch in constraint.watches()]

    def sync(self) -> None:
        """Tidy up before decisions."""
        for constraint in self._all:
            constraint.sync()

    def tick(self) -> None:
        """Do the periodic work of constraints."""
        for constraint in self._all:
            constraint.tick()

    def check_ready(self, pods: Iterable[PodInfo]) -> None:
        """Return if all of the pods may start now. Raises NotYetError, RuleError."""
        for constraint in self._ready:
            for pod in pods:
                constraint.check_ready(pod)

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the feasible nodes of a pod, with the reasons for the others. Raises RuleError."""
        mask: Mask | None = None
        reasons: list[str] = []
        for constraint in self._filters:
            left = constraint.filter_nodes(pod)
            if left is not ALL_NODES:
                mask = intersect_masks(mask, left.mask)
                if left.reason:
                    reasons.append(left.reason)
        return ALL_NODES if mask is None else NodeFilter(mask, ", ".join(reasons))

    def restrict(self, pod: PodInfo) -> bool:
        """Return True if the pod's gang must be placed one by one. Raises NotYetError of any constraint, RuleError."""
        restricted = False
        for constraint in self._filters:
            restricted |= constraint.restricts(pod)  # each is asked: a later one may raise NotYetError
        return restricted

    def pinned_by(self, pod: PodInfo) -> str:
        """Return the title of a constraint that keeps a running pod where it is; empty if none does.

        Raises RuleError.
        """
        pinning = (each for each in self._filters if each.pins_pods)
        return next((each.title for each in pinning if each.restricts(pod)), "")

    def outweigh_closeness(self, pods: Iterable[PodInfo]) -> bool:
        """Return True if members of a gang are placed by their weights first, and close together only as a fallback."""
        return any(constraint.outweighs_closeness(pod) for constraint in self._outweighing for pod in pods)

    def replica_nodes(self, pod: PodInfo) -> Mask | None:
        """Return the nodes that have replicas of a pod; None: it does not ask to be spread. Raises RuleError."""
        found = (constraint.replica_nodes(pod) for constraint in self._spreading)
        return next((mask for mask in found if mask is not None), None)

    def score_nodes(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot; None: all are equal. Raises RuleError."""
        total: Floats | None = None
        for constraint in self._scorers:
            weights = constraint.score_nodes(pod)
            if weights is not None:
                total = weights if total is None else total + weights
        return total
