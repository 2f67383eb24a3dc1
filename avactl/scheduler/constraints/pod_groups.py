"""Kubernetes' own PodGroups (`scheduling.k8s.io`), which the Job controller makes with the gate WorkloadWithJob.

A PodGroup with the policy `gang` makes its pods a gang (`PodInfo.join`); this constraint reads the PodGroups, and keeps
pods waiting whose PodGroup is not there, asks for what is not supported, or is contradicted by a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.base.object_identity import namespaced_name
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import Constraint, Watch
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, ReportedWaitError, UnsupportedError
from avactl.scheduler.objects.pod_groups import PodGroup, read_pod_group
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason


class PodGroups(Constraint):
    """Lets the pods of a PodGroup start if all that it asks for is supported; a watch store of PodGroups."""

    title = "its PodGroup"
    declared = False
    pins_pods = False

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._readable = policy.pod_groups

    def watches(self) -> Iterable[Watch]:
        """Return the PodGroups of all namespaces; API servers without the gate GenericWorkload do not serve them."""
        return (Watch("/apis/scheduling.k8s.io/v1beta1/podgroups", self, optional=True),) if self._readable else ()

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises NotYetError if its PodGroup is not known yet, and UnsupportedError."""
        if not pod.pod_group or (pod.gang and pod.group is None):
            return
        if not self._readable:
            raise UnsupportedError("the scheduler may not read its PodGroup: apply its role of this release")
        members = self.tables.pod_groups[pod.pod_group_key]
        event, name = f"podgroup {pod.pod_group_key}", quote(pod.pod_group)
        if members is None or members.group is None:
            message = f"waits for its PodGroup {name} (scheduling.k8s.io/v1beta1), which does not exist"
            raise NotYetError(message, event, WaitReason.POD_GROUP)
        obstacle = self._obstacle(members.group) or next(iter(members.odd.values()), "")
        if obstacle:
            # Only a change of the PodGroup or of its pods helps.
            raise ReportedWaitError(f"its PodGroup {name} has {obstacle}", event, WaitReason.UNSUPPORTED)

    def _obstacle(self, group: PodGroup) -> str:
        """Return what a PodGroup has that this cluster cannot do; empty if nothing."""
        if group.refused:
            return f"{group.refused}: not supported"
        levels = self.tables.levels
        if group.within and group.within not in levels:
            known = ", ".join(levels) or "none"
            return (
                f"the topology key `{quote(group.within)}`, which is no level of the cluster ({known}): add it to "
                "`placement.levels` of the Cluster"
            )
        return ""

    # -- a watch store ---------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a PodGroup."""
        self.cache.put_pod_group(namespaced_name(item), read_pod_group(item))

    def remove(self, key: str) -> None:
        """Forget a PodGroup."""
        self.cache.put_pod_group(key, None)

    def keys(self) -> list[str]:
        """Return the keys of the known PodGroups."""
        return self.tables.pod_groups.known()
