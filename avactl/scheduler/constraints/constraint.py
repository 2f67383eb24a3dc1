"""The interface of scheduling constraints.

A constraint answers up to four questions about a pod: may it start yet, which nodes are feasible and why not the
others, which of them are preferred, and which event makes another attempt worthwhile. Models: the plug-ins of
KAI-Scheduler, and the filters, scores and queueing hints of kube-scheduler's scheduling framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.pod_info import PodInfo

if TYPE_CHECKING:
    from avactl.kube.reflector import ObjectReceiver  # a plan has no Kubernetes client


class NodeFilter(NamedTuple):
    """The nodes that constraints leave to a pod."""

    mask: Mask | None = None
    """Feasible nodes; None: all."""
    reason: str = ""
    """Number of the other nodes, and why they are infeasible: `3 without access to its volumes`."""


ALL_NODES = NodeFilter()


class Watch(NamedTuple):
    """Objects that a constraint reads, as a list and watch of the API server."""

    path: str
    store: ObjectReceiver
    query: Mapping[str, str] | None = None
    optional: bool = False
    """True if the API server may not serve it."""

    @property
    def resource(self) -> str:
        """Resource name in lower-case plural, such as `persistentvolumes`."""
        return self.path.rpartition("/")[2]


class Constraint:
    """A scheduling constraint. Each method restricts nothing unless a subclass overrides it.

    Constraints are created before any object is read. Everything that a pod or its annotations contain was written by
    a tenant: raise RuleError for what cannot be evaluated, with `quote` for text of the pod in messages.
    """

    title: ClassVar[str]
    """Name of the restriction, in messages: `restricted by …`."""
    declared: ClassVar[bool] = True
    """True if the specs contain all that it needs, so that `avactl plan` applies it without a snapshot."""
    pins_pods: ClassVar[bool] = True
    """True if defragmentation must not move the pods that it restricts."""

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        self.cache, self.tables = cache, cache.tables

    @classmethod
    def enabled(cls, policy: PlacementPolicy) -> bool:
        """Return True if the cluster uses the constraint."""
        return True

    # -- questions about a pod --------------------------------------------------------------------------------------

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod may start now, on whatever node.

        Raises NotYetError with the event that the pod waits for, and RuleError.
        """

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the feasible nodes. Raises NotYetError with the event that the pod waits for, and RuleError."""
        return ALL_NODES

    def restricts(self, pod: PodInfo) -> bool:
        """Return True if a gang with the pod must be placed one by one, because members affect each other.

        Raises RuleError.
        """
        return self.filter_nodes(pod).mask is not None

    def score_nodes(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot, up to 100 as in Kubernetes; None: all are equal. Raises RuleError."""
        return None

    def replica_nodes(self, pod: PodInfo) -> Mask | None:
        """Return the nodes that have pods over whose nodes the pod should be spread; None: it does not say. Raises
        RuleError."""
        return None

    def outweighs_closeness(self, pod: PodInfo) -> bool:
        """Return True if members of a gang are placed by their weights first, and close together only as a fallback."""
        return False

    # -- keeping up -------------------------------------------------------------------------------------------------

    def watches(self) -> Iterable[Watch]:
        """Return the objects to watch for this constraint, beside nodes, pods, namespaces and ResourceClaims."""
        return ()

    def sync(self) -> None:
        """Tidy up. Called before decisions."""

    def tick(self) -> None:
        """Do periodic work. Called about twice a second in the daemon."""

    def event_occurred(self, event: str) -> None:
        """Retry the pods that wait for an event (`NotYetError.event`)."""
        self.tables.waits.occurred(event)

    def nodes_freed(self) -> None:
        """Retry all pods that fit nowhere: more nodes may be feasible now."""
        self.tables.change_epoch += 1

    def only_nodes(self, mask: Mask, others: str) -> NodeFilter:
        """Return the filter of a mask; `others` says what is wrong with the other nodes, for the reason."""
        count = self.count_excluded(~mask)
        return NodeFilter(mask, f"{count} {others}" if count else "")

    def count_excluded(self, excluded: Mask) -> int:
        """Return the number of nodes in a mask. A slot without a node has a negative capacity."""
        return int((excluded & (self.tables.state.capacity[:, 0] >= 0)).sum())
