"""Affinity of user pods, as in Kubernetes. Pods of other namespaces cannot be named: they belong to other teams."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from avactl.contracts.names import GROUP
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import label_key, label_value, value_error

_SYSTEM_LABELS = ("node-role.kubernetes.io/", "node.kubernetes.io/exclude-")


def node_label(value: str) -> str:
    """Check the key of a node label by which pods select nodes."""
    label_key(value)
    if value.startswith(f"{GROUP}/"):
        raise value_error(f"`{value}` selects avactl's pools", "write `pool: …` or `gpu: …` beside `gpus`")
    if value.startswith(_SYSTEM_LABELS):
        raise value_error(
            f"`{value}` selects nodes of the control plane, which belong to no pool", "select a pool: `pool: …`"
        )
    return value


NodeLabel = Annotated[str, AfterValidator(node_label), Field(max_length=317)]
PodLabel = Annotated[str, AfterValidator(label_key), Field(max_length=317)]
Value = Annotated[str, AfterValidator(label_value), Field(max_length=63)]
Weight = Annotated[int, Field(ge=1, le=100)]
_MAX_TERMS = 32


class NodeExpression(Model):
    """A condition on a label of nodes."""

    key: NodeLabel = Field(description="Label of nodes.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(description="Comparison.")
    values: Annotated[list[Value], Field(max_length=256)] = Field(default_factory=list, description="Values.")


class NodeTerm(Model):
    """Conditions on a node that must all hold."""

    match_expressions: Annotated[list[NodeExpression], Field(min_length=1, max_length=_MAX_TERMS)] = Field(
        description="Conditions."
    )


class NodeSelector(Model):
    """Alternatives, of which one must hold."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=_MAX_TERMS)] = Field(
        description="Terms."
    )


class PreferredNode(Model):
    """A preference for nodes."""

    weight: Weight = Field(description="Weight, 1 to 100.")
    preference: NodeTerm = Field(description="The preferred nodes.")


class NodeAffinity(Model):
    """Nodes that the pods need or prefer."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        None, description="Nodes that the pods need."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNode], Field(max_length=_MAX_TERMS)
    ] = Field(default_factory=list, description="Nodes that the pods prefer.")


class LabelExpression(Model):
    """A condition on a label of pods."""

    key: PodLabel = Field(description="Label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Comparison.")
    values: Annotated[list[Value], Field(max_length=256)] = Field(default_factory=list, description="Values.")


class LabelSelector(Model):
    """Pods by their labels."""

    match_labels: Annotated[dict[PodLabel, Value], Field(max_length=_MAX_TERMS)] = Field(
        default_factory=dict, description="Labels that pods have."
    )
    match_expressions: Annotated[list[LabelExpression], Field(max_length=_MAX_TERMS)] = Field(
        default_factory=list, description="Conditions."
    )


class PodTerm(Model):
    """Pods of the same namespace, and the level of topology at which they count."""

    label_selector: LabelSelector = Field(description="The pods.")
    topology_key: PodLabel = Field(description="Label of nodes, such as `kubernetes.io/hostname`.")


class PreferredPods(Model):
    """A preference for or against nodes near pods."""

    weight: Weight = Field(description="Weight, 1 to 100.")
    pod_affinity_term: PodTerm = Field(description="The pods.")


class PodAffinity(Model):
    """Pods that the pods need or prefer near them, or not near them."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodTerm], Field(max_length=_MAX_TERMS)] = Field(
        default_factory=list, description="Conditions."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Field(max_length=_MAX_TERMS)
    ] = Field(default_factory=list, description="Preferences.")


class Affinity(Model):
    """Nodes and pods that the pods should be on, near, or away from."""

    node_affinity: NodeAffinity | None = Field(None, description="Nodes.")
    pod_affinity: PodAffinity | None = Field(None, description="Pods of the namespace to be near.")
    pod_anti_affinity: PodAffinity | None = Field(None, description="Pods of the namespace to be away from.")


class Toleration(Model):
    """A tolerated taint: one of the cluster's pools, or of nodes that are not ready."""

    key: PodLabel = Field(description="Key of the taint. A toleration of all taints is not allowed.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="`Exists`: any value.")
    value: Value = Field("", description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect. Default: all."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        None, description="How long a pod stays after the taint appears, for `NoExecute`. Default: for ever."
    )


def foreign_terms(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the terms of a pod's affinity and anti-affinity that select pods of other namespaces."""
    terms: list[dict[str, Any]] = []
    for group in ("podAffinity", "podAntiAffinity"):
        own = (pod.get("affinity") or {}).get(group) or {}
        terms += own.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        preferred = own.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        terms += [each.get("podAffinityTerm") or {} for each in preferred]
    return [each for each in terms if "namespaces" in each or "namespaceSelector" in each]


NODE_TAINTS = tuple(f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "memory-pressure"))
"""Taints that admission plugins make pods tolerate; pods may name them, too."""
