"""ResourceClaims that are allocated already: the pod needs a node with access to their devices."""

from __future__ import annotations

from avactl.hardware.placement.masks import intersect_masks
from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter
from avactl.scheduler.objects.pod_info import PodInfo


class AllocatedClaims(Constraint):
    """Nodes with access to the devices of a pod's allocated ResourceClaims."""

    title = "ResourceClaims"
    pins_pods = False  # defragmentation allocates them anew

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the nodes that reach the devices of allocated claims."""
        claims = self.cache.claims
        mask = claims.reachable_nodes(self.cache.dra.demand(pod)) if claims.concern(pod) else None
        mask = intersect_masks(mask, claims.nodes_without_plugin(pod))
        if mask is None:
            return ALL_NODES
        return self.only_nodes(mask, "without access to the devices of its ResourceClaim")

    def restricts(self, pod: PodInfo) -> bool:
        """Return True if only the allocator can place the pod."""
        return self.cache.claims.needs_allocator(pod)
