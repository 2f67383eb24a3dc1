"""Kubernetes' own PodGroups (`scheduling.k8s.io/v1beta1`).

A PodGroup with the policy `gang` is a gang of its pods; with `basic`, they are independent. Source: `PodGroupSpec` in
staging/src/k8s.io/api/scheduling/v1beta1/types.go of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from avactl.contracts.names import INITIALLY_SCHEDULED
from avactl.scheduler.objects.limits import quote

NO_GANG = (0, "", False)
"""The gang that a PodGroup with the policy `basic` makes of its pods (`PodGroup.gang`): none."""
MAX_PODS = 100_000
"""Largest `minCount`."""
_FIELDS = frozenset(
    (
        "parentCompositePodGroupName",
        "workloadRef",
        "schedulingPolicy",
        "schedulingConstraints",
        "resourceClaims",
        "disruptionMode",
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    )
)
"""Fields of a PodGroup in Kubernetes 1.37."""


class GroupCondition(NamedTuple):
    """A condition of a PodGroup."""

    status: str
    reason: str
    message: str
    since: str
    """Time of the last change of the status."""


class PodGroup(NamedTuple):
    """The demands of a PodGroup on a scheduler."""

    uid: str
    generation: int
    size: int = 0
    """Pods that start together; 0 for the policy `basic`."""
    within: str = ""
    """Node label of the domain that holds all pods; empty for none."""
    together: bool = False
    """True if its pods are disrupted all together, or not at all."""
    priority: int = 0
    preemption_policy: str = ""
    """That of all of its pods; empty: it does not say."""
    refused: str = ""
    """The demand that is not supported; empty if all are."""
    condition: GroupCondition | None = None
    """Its condition `INITIALLY_SCHEDULED`."""

    @property
    def gang(self) -> tuple[int, str, bool]:
        """The gang that it makes of its pods: size, 0 for none, domain and disruption."""
        return self.size, self.within, self.together

    @property
    def started(self) -> bool:
        """True once as many pods as it asks for have been scheduled: later, `minCount` stops no pods."""
        return self.condition is not None and self.condition.status == "True"


def read_pod_group(item: Mapping[str, Any]) -> PodGroup:
    """Parse a PodGroup of the API server."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    policy, constraints = spec.get("schedulingPolicy") or {}, spec.get("schedulingConstraints") or {}
    gang = policy.get("gang") or {}
    topology = constraints.get("topology") or ()
    group = PodGroup(
        uid=metadata.get("uid") or "",
        generation=metadata.get("generation") or 0,
        priority=spec.get("priority") or 0,
        preemption_policy=spec.get("preemptionPolicy") or "",
        refused=_unsupported(spec, policy, constraints, topology),
        condition=_condition((item.get("status") or {}).get("conditions") or ()),
    )
    if group.refused or "gang" not in policy:
        return group
    return group._replace(
        size=gang["minCount"],
        within=topology[0]["key"] if topology else "",
        together="all" in (spec.get("disruptionMode") or {}),
    )


def _unsupported(
    spec: Mapping[str, Any], policy: Mapping[str, Any], constraints: Mapping[str, Any], topology: Iterable[Any]
) -> str:
    """Return what a PodGroup asks for that is not supported. What later versions add is not, either."""
    if unknown := sorted(spec.keys() - _FIELDS):
        return f"`{quote(unknown[0])}`"
    if spec.get("parentCompositePodGroupName"):
        return "a parent, `parentCompositePodGroupName`"
    if spec.get("resourceClaims"):
        return "`resourceClaims`, which its pods share"
    if policy.keys() not in ({"basic"}, {"gang"}):
        return "a `schedulingPolicy` other than `basic` and `gang`"
    mode = spec.get("disruptionMode") or {"single": {}}
    if mode.keys() not in ({"single"}, {"all"}):
        return "a `disruptionMode` other than `single` and `all`"
    if unknown := sorted(constraints.keys() - {"topology"}):
        return f"the constraint `{quote(unknown[0])}`"
    keys = [each.get("key") for each in topology if each.keys() == {"key"}]
    if len(keys) != len([*topology]) or len(keys) > 1 or not all(keys):
        return "a topology constraint other than one key"
    if "basic" in policy:
        if policy["basic"]:
            return "a policy `basic` with fields"
        if keys or "all" in mode:
            return f"{'a topology constraint' if keys else 'the disruption mode `all`'} with the policy `basic`"
        return ""
    if policy["gang"].keys() != {"minCount"} or not 0 < policy["gang"]["minCount"] <= MAX_PODS:
        return f"a policy `gang` without a `minCount` of 1 to {MAX_PODS}, or with other fields"
    return ""


def _condition(conditions: Iterable[Mapping[str, Any]]) -> GroupCondition | None:
    for each in conditions:
        if each.get("type") == INITIALLY_SCHEDULED:
            texts = (each.get(key) or "" for key in ("status", "reason", "message", "lastTransitionTime"))
            return GroupCondition(*texts)
    return None
