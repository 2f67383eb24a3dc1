"""Access to the volumes of a pod, and the volume limits of nodes."""

from __future__ import annotations

from collections.abc import Iterable

from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter, Watch
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.watch_store import CallbackStore


class VolumeAccess(Constraint):
    """Nodes with access to a pod's volumes, below the volume limits of their drivers."""

    title = "volumes"

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the nodes that reach all volumes. Raises NotYetError if a volume is not ready yet, and RuleError."""
        mask = self.cache.volumes.reachable_nodes(pod) if pod.volumes else None
        if mask is None:
            return ALL_NODES
        return self.only_nodes(mask, "without access to its volumes, or at the volume limit")

    def restricts(self, pod: PodInfo) -> bool:
        """Return True if a volume is not reachable everywhere. Raises as `filter_nodes`."""
        return bool(pod.volumes) and self.cache.volumes.reachable_nodes(pod) is not None

    def watches(self) -> Iterable[Watch]:
        """Return the storage objects; their tables retry pods when they change."""
        volumes, attached, storage = self.cache.volumes, self.cache.volumes.attached, "/apis/storage.k8s.io/v1"
        return (
            Watch(
                f"{storage}/storageclasses",
                CallbackStore(volumes.put_class, volumes.drop_class, lambda: volumes.keys("classes")),
            ),
            Watch(f"{storage}/csinodes", CallbackStore(attached.put_node, attached.drop_node, attached.nodes)),
            Watch(
                f"{storage}/csidrivers",
                CallbackStore(volumes.put_driver, volumes.drop_driver, lambda: volumes.keys("drivers")),
            ),
            Watch(
                f"{storage}/csistoragecapacities",
                CallbackStore(volumes.put_capacity, volumes.drop_capacity, lambda: volumes.keys("capacities")),
            ),
            Watch(
                f"{storage}/volumeattachments",
                CallbackStore(attached.put_attachment, attached.drop_attachment, attached.attachments),
            ),
            Watch(
                "/api/v1/persistentvolumes",
                CallbackStore(volumes.put_volume, volumes.drop_volume, lambda: volumes.keys("volumes")),
            ),
            Watch(
                "/api/v1/persistentvolumeclaims",
                CallbackStore(volumes.put_claim, volumes.drop_claim, lambda: volumes.keys("claims")),
            ),
        )
