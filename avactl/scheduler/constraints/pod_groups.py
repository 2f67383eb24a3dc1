"""Kubernetes' own PodGroups (`scheduling.k8s.io`), which the Job controller makes with the gate WorkloadWithJob.

A PodGroup with the policy Basic asks for nothing. Others ask for what avactl does not do by them: their pods wait,
except those of avactl's own gangs, which have the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.base.object_identity import namespaced_name
from avactl.contracts import names
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import Constraint, Watch
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

_BASIC = ""


class PodGroups(Constraint):
    """Lets the pods of a PodGroup start if it asks for nothing; a watch store of PodGroups."""

    title = "its PodGroup"
    declared = False
    pins_pods = False

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._readable = policy.pod_groups
        self._demands: dict[str, str] = {}
        """Key of a PodGroup → what it asks for; empty: nothing."""

    def watches(self) -> Iterable[Watch]:
        """Return the PodGroups of all namespaces; API servers without the gate GenericWorkload do not serve them."""
        return (Watch("/apis/scheduling.k8s.io/v1beta1/podgroups", self, optional=True),) if self._readable else ()

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises NotYetError if its PodGroup is not known yet, and UnsupportedError."""
        if not pod.pod_group or pod.gang:
            return
        if not self._readable:
            raise UnsupportedError("the scheduler may not read its PodGroup: apply its role of this release")
        key = f"{pod.namespace}/{pod.pod_group}"
        demand = self._demands.get(key)
        if demand is None:
            message = f"waits for its PodGroup {quote(pod.pod_group)} (scheduling.k8s.io/v1beta1), which does not exist"
            raise NotYetError(message, f"podgroup {key}", WaitReason.POD_GROUP)
        if demand != _BASIC:
            raise UnsupportedError(
                f"its PodGroup {quote(pod.pod_group)} has {demand}, which is not supported: a gang has the label "
                f"{names.GANG_LABEL}"
            )

    # -- a watch store ---------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a PodGroup."""
        key, demand = namespaced_name(item), _demand(item.get("spec") or {})
        if self._demands.get(key) != demand:
            self._demands[key] = demand
            self.event_occurred(f"podgroup {key}")

    def remove(self, key: str) -> None:
        """Forget a PodGroup."""
        self._demands.pop(key, None)

    def keys(self) -> list[str]:
        """Return the keys of the known PodGroups."""
        return list(self._demands)


def _demand(spec: Mapping[str, Any]) -> str:
    """Return what a PodGroup asks of a scheduler beyond its pods: fields of PodGroupSpec in pkg/apis/scheduling."""
    if "basic" not in (spec.get("schedulingPolicy") or {}):
        return "the policy gang"
    if spec.get("parentCompositePodGroupName"):
        return "a parent"
    for field in ("schedulingConstraints", "resourceClaims"):
        if spec.get(field):
            return f"`{field}`"
    if "all" in (spec.get("disruptionMode") or {}):
        return "the disruption mode all"
    return _BASIC
