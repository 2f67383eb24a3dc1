"""Disruption class of each change of a Kubernetes object: one table, first match wins.

Sources: update validation of Kubernetes 1.36 (`pkg/apis/*/validation`), and the fields for which Pulumi's Kubernetes
provider replaces an object (`provider/pkg/provider/diff.go`). A test checks the table against a real API server:
changes that it refuses are never classified below `replace`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.change.diff.fields import ListStep, Steps, ValueChange
from avactl.change.diff.model import Disruption
from avactl.contracts import names
from avactl.program.manifest import Body, Manifest

NONE, METADATA, IN_PLACE = Disruption.NONE, Disruption.METADATA, Disruption.IN_PLACE
POD_RESTART, REPLACE, DATA_LOSS = Disruption.POD_RESTART, Disruption.REPLACE, Disruption.DATA_LOSS


def _is_smaller(change: ValueChange, body: Body) -> bool:
    try:
        return change.op == "removed" or parse_quantity(change.new) < parse_quantity(change.old)
    except ValueError:
        return False


def _adds_evicting_taint(change: ValueChange, body: Body) -> bool:
    """Return whether a taint change adds an evicting taint; the effect is part of the entry's key."""
    taints = change.new if isinstance(change.new, list) else [change.new]
    effects = [taint.get("effect") for taint in taints if isinstance(taint, dict)]
    return change.op != "removed" and ("NoExecute" in effects or any("NoExecute" in step for step in change.path))


def _is_immutable(change: ValueChange, body: Body) -> bool:
    return body.get("immutable") is True


def _on_delete(change: ValueChange, body: Body) -> bool:
    strategy = body["spec"].get("updateStrategy")
    return isinstance(strategy, dict) and strategy.get("type") == "OnDelete"


def _is_recreated(change: ValueChange, body: Body) -> bool:
    strategy = body["spec"].get("strategy")
    return isinstance(strategy, dict) and strategy.get("type") == "Recreate"


def _in_steps(change: ValueChange, body: Body) -> bool:
    return bool({names.ROLLOUT, names.ROLLOUT_WITH} & set(body.get("metadata", {}).get("annotations", {})))


def _to_recreate(change: ValueChange, body: Body) -> bool:
    """Server-side apply keeps the defaults of a rolling update, which Recreate does not allow."""
    new = change.new.get("type") if isinstance(change.new, dict) else change.new
    return new == "Recreate"


def _other_store(change: ValueChange, body: Body) -> bool:
    return not holds_own_data(body)


class DiffRule(NamedTuple):
    """Changes of `kinds` (`*`: all) at or below one of `paths` (`*`: any step; empty: anywhere) are of a class.

    Several kinds and several paths are separated by blanks.
    """

    kinds: str
    paths: str
    disruption: Disruption
    reason: str
    when: Callable[[ValueChange, Body], bool] | None = None
    """Condition on the change and the old object's body."""


RULES: tuple[DiffRule, ...] = (
    # A run of a Job keeps the template it was started with.
    DiffRule(
        "Job",
        "spec.completions spec.parallelism spec.template spec.completionMode spec.selector "
        "spec.podFailurePolicy spec.successPolicy spec.backoffLimitPerIndex spec.managedBy",
        REPLACE,
        "new run",
    ),
    DiffRule("Job", "spec.suspend", POD_RESTART, "stops or starts its pods"),
    DiffRule("Job", "spec", IN_PLACE, "the run continues"),
    DiffRule("CronJob", "spec", IN_PLACE, "from the next run on"),
    # Workloads that roll out.
    DiffRule("StatefulSet", "spec.volumeClaimTemplates", REPLACE, "recreated; existing volumes are unchanged"),
    DiffRule(
        "StatefulSet",
        "spec.serviceName spec.podManagementPolicy",
        REPLACE,
        "recreated: immutable; its volumes are kept",
    ),
    DiffRule("StatefulSet", "spec.persistentVolumeClaimRetentionPolicy", IN_PLACE, "decides whether volumes are kept"),
    DiffRule("StatefulSet", "spec.revisionHistoryLimit", IN_PLACE, ""),
    DiffRule("Deployment StatefulSet DaemonSet", "spec.selector", REPLACE, "recreated: the selector is immutable"),
    DiffRule("StatefulSet DaemonSet", "spec.template", POD_RESTART, "each pod only after manual deletion", _on_delete),
    DiffRule(
        "Deployment", "spec.strategy", REPLACE, "rejected for an existing Deployment: delete it first", _to_recreate
    ),
    DiffRule("Deployment", "spec.template", POD_RESTART, "all pods stop, then new ones start", _is_recreated),
    DiffRule("Deployment", "spec.template", POD_RESTART, "canary or blue-green rollout", _in_steps),
    DiffRule("Deployment StatefulSet", "spec.template", POD_RESTART, "rolling restart"),
    DiffRule("DaemonSet", "spec.template", POD_RESTART, "rolling restart on each machine"),
    DiffRule("LeaderWorkerSet", "spec.leaderWorkerTemplate spec.networkConfig", POD_RESTART, "canary", _in_steps),
    DiffRule(
        "LeaderWorkerSet", "spec.leaderWorkerTemplate spec.networkConfig", POD_RESTART, "rolling restart by groups"
    ),
    DiffRule(
        "DisaggregatedSet", "spec.roles.*.spec.leaderWorkerTemplate", POD_RESTART, "rolling restart of both roles"
    ),
    DiffRule("DisaggregatedSet", "spec.roles.*.spec.replicas", IN_PLACE, "scales"),
    DiffRule("Deployment StatefulSet LeaderWorkerSet", "spec.replicas", IN_PLACE, "scales"),
    DiffRule("Deployment StatefulSet DaemonSet", "spec", IN_PLACE, ""),
    DiffRule("Pod", "spec", REPLACE, "recreated: pods are immutable"),
    # Volumes.
    DiffRule(
        "PersistentVolumeClaim",
        "spec.resources.requests.storage",
        REPLACE,
        "recreated: cannot shrink; the data is in the external store",
        lambda c, b: _is_smaller(c, b) and _other_store(c, b),
    ),
    DiffRule(
        "PersistentVolumeClaim",
        "spec.resources.requests.storage",
        DATA_LOSS,
        "volumes cannot shrink; the smaller one is new and empty",
        _is_smaller,
    ),
    DiffRule(
        "PersistentVolumeClaim", "spec.resources.requests.storage", IN_PLACE, "grows if the storage class allows it"
    ),
    DiffRule("PersistentVolumeClaim", "spec.volumeAttributesClassName", IN_PLACE, ""),
    DiffRule(
        "PersistentVolumeClaim",
        "spec",
        REPLACE,
        "recreated: immutable; the data is in the external store",
        _other_store,
    ),
    DiffRule("PersistentVolumeClaim", "spec", DATA_LOSS, "immutable; the new volume is empty"),
    DiffRule("PersistentVolume", "spec.capacity spec.accessModes", IN_PLACE, ""),
    DiffRule("PersistentVolume", "spec.mountOptions", IN_PLACE, "from the next mount on"),
    DiffRule("PersistentVolume", "spec.persistentVolumeReclaimPolicy", IN_PLACE, "changes whether the data is deleted"),
    DiffRule("PersistentVolume", "spec.claimRef", REPLACE, "recreated: bound to another claim"),
    DiffRule("PersistentVolume", "spec", REPLACE, "recreated: immutable; the data is kept"),
    DiffRule("StorageClass", "allowVolumeExpansion", IN_PLACE, ""),
    DiffRule("StorageClass", "mountOptions allowedTopologies", IN_PLACE, "for new volumes"),
    DiffRule("StorageClass", "metadata", METADATA, ""),
    DiffRule("StorageClass", "", REPLACE, "recreated: immutable; existing volumes are unchanged"),
    # Network.
    DiffRule("Service", "spec.clusterIP spec.clusterIPs", REPLACE, "recreated with another address"),
    DiffRule("Service", "spec.selector", IN_PLACE, "routes to other pods"),
    DiffRule("Service", "spec.ports", IN_PLACE, "clients must use the new ports"),
    DiffRule("NetworkPolicy", "spec", IN_PLACE, "connections may be cut"),
    DiffRule("Ingress", "spec", IN_PLACE, ""),
    # Configuration.
    DiffRule("ConfigMap Secret", "immutable", REPLACE, "recreated", _is_immutable),
    DiffRule("ConfigMap Secret", "data binaryData", REPLACE, "recreated: immutable", _is_immutable),
    DiffRule("Secret", "type", REPLACE, "recreated: immutable"),
    DiffRule("ConfigMap Secret", "data", IN_PLACE, "running pods keep the values they have read"),
    # Access.
    DiffRule("RoleBinding ClusterRoleBinding", "roleRef", REPLACE, "recreated: immutable"),
    DiffRule("RoleBinding ClusterRoleBinding", "subjects", IN_PLACE, "changes who has access"),
    DiffRule("Role ClusterRole", "rules", IN_PLACE, "changes permissions"),
    # Scheduling.
    DiffRule("PriorityClass", "value preemptionPolicy", REPLACE, "recreated: immutable; existing pods keep theirs"),
    DiffRule("ResourceClaimTemplate", "spec", REPLACE, "recreated: immutable; existing claims are kept"),
    DiffRule("ComputeDomain", "spec", REPLACE, "recreated: immutable"),
    DiffRule("DeviceClass", "spec", IN_PLACE, "for new claims"),
    DiffRule("Node", "spec.taints", POD_RESTART, "evicts pods that do not tolerate it", _adds_evicting_taint),
    DiffRule("Node", "spec.taints", IN_PLACE, "for new pods"),
    DiffRule("Node", "metadata.labels", IN_PLACE, "for new pods"),
    DiffRule("Namespace", "metadata.labels", IN_PLACE, "policies may select on them"),
    DiffRule("ResourceQuota", "spec.scopes", REPLACE, "recreated: immutable"),
    DiffRule("ResourceQuota", "spec", IN_PLACE, "for new pods and volumes"),
    DiffRule("LimitRange", "spec", IN_PLACE, "for new pods"),
    # Everything else.
    DiffRule("*", "metadata", METADATA, ""),
    DiffRule("*", "apiVersion", METADATA, ""),
    DiffRule("*", "spec.template", POD_RESTART, "pods restart"),
    DiffRule("*", "", IN_PLACE, ""),
)


@cache
def _rules_of_kind(kind: str) -> tuple[tuple[tuple[str, ...], DiffRule], ...]:
    return tuple(
        (tuple(path.split(".")), rule)
        for rule in RULES
        if rule.kinds == "*" or kind in rule.kinds.split()
        for path in rule.paths.split() or [""]
    )


def _is_below(pattern: tuple[str, ...], path: Steps) -> bool:
    return pattern == ("",) or (
        len(path) >= len(pattern)
        and all(
            want in ("*", step) and (want == "*" or not isinstance(step, ListStep))
            for want, step in zip(pattern, path, strict=False)
        )
    )


def classify_change(kind: str, change: ValueChange, body: Body) -> tuple[Disruption, str]:
    """Return the disruption class of one change of an object of `kind` with the given old body, and a short reason."""
    for pattern, rule in _rules_of_kind(kind):
        if _is_below(pattern, change.path) and (rule.when is None or rule.when(change, body)):
            return rule.disruption, rule.reason
    raise AssertionError("the last rule matches everything")


DEFERRED = frozenset(("from the next mount on", "from the next run on", "for new volumes", "for new claims"))
"""Reasons of changes in place that do not reach what runs: pods, mounts and claims keep the old values."""


def is_refused(disruption: Disruption, holds_data: bool) -> bool:
    """Return whether `avactl reconcile` refuses a change: it would lose data, or replace an object that is protected
    because it holds data. The other engines refuse to replace a protected object, too."""
    return disruption == DATA_LOSS or (disruption == REPLACE and holds_data)


def holds_own_data(body: Mapping[str, Any]) -> bool:
    """Return whether deleting a claim deletes data; not if it is bound by name to a volume of an external store."""
    spec: dict[str, Any] = body.get("spec", {})
    read_only = spec.get("accessModes") == ["ReadOnlyMany"]
    return not (read_only or spec.get("volumeName") or spec.get("selector"))


_GONE: dict[str, tuple[Disruption, str]] = {
    "Namespace": (DATA_LOSS, "and everything in it, volumes too"),
    "PersistentVolumeClaim": (DATA_LOSS, "with the data on it"),
    "CustomResourceDefinition": (DATA_LOSS, "and every object of its kind"),
    "Job": (REPLACE, "a running Job is stopped"),
    "CronJob": (REPLACE, "no further runs"),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet", "DisaggregatedSet"), (REPLACE, "its pods stop")
    ),
    "Pod": (REPLACE, "stops"),
    "Service": (REPLACE, "its address is lost"),
    "Node": (IN_PLACE, "the machine stays; avactl's labels and taints are removed"),
}
"""Consequence of deleting an object of a kind. Other kinds hold neither pods nor data."""


def classify_deletion(manifest: Manifest) -> tuple[Disruption, str]:
    """Return the disruption class of deleting an object, and a short reason."""
    return deletion_of(manifest.kind, manifest.body)


def deletion_of(kind: str, body: Mapping[str, Any]) -> tuple[Disruption, str]:
    """Return as `deletion` for any live object."""
    if kind == "PersistentVolumeClaim" and not holds_own_data(body):
        return IN_PLACE, "pods keep using it until they end; the data is in the external store"
    if kind == "PersistentVolume":
        reclaim = body.get("spec", {}).get("persistentVolumeReclaimPolicy", "Retain")
        return (DATA_LOSS, "with the data on it") if reclaim == "Delete" else (IN_PLACE, "the data is kept")
    if kind == "StatefulSet":
        spec = body.get("spec", {})
        policy = spec.get("persistentVolumeClaimRetentionPolicy") or {}
        if spec.get("volumeClaimTemplates"):
            lost = policy.get("whenDeleted") == "Delete"
            return (DATA_LOSS, "with its volumes") if lost else (REPLACE, "its pods stop; its volumes are kept")
    return _GONE.get(kind, (IN_PLACE, ""))
