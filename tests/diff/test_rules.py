"""The table of disruption classes, against what a real API server lets change."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from avactl.change.diff.fields import field_differences
from avactl.change.diff.model import Disruption, worst_disruption
from avactl.change.diff.rules import RULES, classify_change, classify_deletion
from avactl.contracts import names
from avactl.program.manifest import Body, Manifest
from tools.controlplane import ApiError, KubeClient

CONTAINER = {"name": "main", "image": "example.com/a:1"}
SELECTOR = {"matchLabels": {"app": "a"}}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [CONTAINER]}}
JOB_TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
DEVICES = {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 1}}]}}
FAILURES = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]}
VERSIONS = {
    "Job": "batch/v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
}

OBJECTS: dict[str, Body] = {
    "Job": {"spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": JOB_TEMPLATE}},
    "StatefulSet": {
        "spec": {
            "serviceName": "a",
            "replicas": 1,
            "selector": SELECTOR,
            "template": TEMPLATE,
            "podManagementPolicy": "Parallel",
            "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": CLAIM}],
        }
    },
    "Deployment": {"spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}},
    "DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "Service": {"spec": {"clusterIP": "None", "selector": {"app": "a"}, "ports": [{"name": "x", "port": 80}]}},
    "PersistentVolumeClaim": {"spec": {**CLAIM, "storageClassName": "one"}},
    "PersistentVolume": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/a"},
        }
    },
    "ConfigMap": {"data": {"a": "1"}},
    "RoleBinding": {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "a"}],
    },
    "Role": {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    "PriorityClass": {"value": 10, "preemptionPolicy": "Never"},
    "ResourceClaimTemplate": {"spec": {"spec": DEVICES}},
    "StorageClass": {"provisioner": "a.example.com", "parameters": {"a": "1"}, "reclaimPolicy": "Retain"},
    "ResourceQuota": {"spec": {"hard": {"cpu": "2"}, "scopes": ["NotTerminating"]}},
    "LimitRange": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "NetworkPolicy": {"spec": {"podSelector": SELECTOR, "policyTypes": ["Ingress"]}},
    "HorizontalPodAutoscaler": {
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}, "maxReplicas": 2}
    },
}
"""One object of each kind in the table that the API server takes."""

NONE, IN_PLACE, POD_RESTART = Disruption.NONE, Disruption.IN_PLACE, Disruption.POD_RESTART
METADATA, REPLACE, DATA_LOSS = Disruption.METADATA, Disruption.REPLACE, Disruption.DATA_LOSS

IMAGE = "spec.template.spec.containers.0.image"
CHANGES: list[tuple[str, str, Any, Disruption]] = [
    ("Job", "spec.completions", 3, REPLACE),
    ("Job", "spec.parallelism", 3, REPLACE),
    ("Job", IMAGE, "example.com/a:2", REPLACE),
    ("Job", "spec.podFailurePolicy", FAILURES, REPLACE),
    ("Job", "spec.backoffLimitPerIndex", 1, REPLACE),
    ("Job", "spec.ttlSecondsAfterFinished", 60, IN_PLACE),
    ("Job", "spec.backoffLimit", 4, IN_PLACE),
    ("Job", "spec.suspend", True, POD_RESTART),
    ("StatefulSet", IMAGE, "example.com/a:2", POD_RESTART),
    ("StatefulSet", "spec.replicas", 2, IN_PLACE),
    ("StatefulSet", "spec.serviceName", "b", REPLACE),
    ("StatefulSet", "spec.podManagementPolicy", "OrderedReady", REPLACE),
    ("StatefulSet", "spec.volumeClaimTemplates.0.spec.resources.requests.storage", "3Gi", REPLACE),
    ("StatefulSet", "spec.minReadySeconds", 3, IN_PLACE),
    ("StatefulSet", "spec.persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Delete"}, IN_PLACE),
    ("Deployment", IMAGE, "example.com/a:2", POD_RESTART),
    ("Deployment", "spec.replicas", 2, IN_PLACE),
    ("Deployment", "spec.strategy", {"type": "Recreate"}, REPLACE),
    ("Deployment", "spec.strategy", {"rollingUpdate": {"maxSurge": 2}}, IN_PLACE),
    ("Deployment", "spec.selector.matchLabels", {"app": "b"}, REPLACE),
    ("DaemonSet", IMAGE, "example.com/a:2", POD_RESTART),
    ("DaemonSet", "spec.selector.matchLabels", {"app": "b"}, REPLACE),
    ("Service", "spec.clusterIP", None, REPLACE),
    ("Service", "spec.ports.0.port", 81, IN_PLACE),
    ("Service", "spec.selector.app", "b", IN_PLACE),
    ("PersistentVolumeClaim", "spec.resources.requests.storage", "1Gi", DATA_LOSS),
    ("PersistentVolumeClaim", "spec.storageClassName", "two", DATA_LOSS),
    ("PersistentVolumeClaim", "spec.accessModes", ["ReadWriteMany"], DATA_LOSS),
    ("PersistentVolume", "spec.hostPath.path", "/b", REPLACE),
    ("PersistentVolume", "spec.capacity.storage", "2Gi", IN_PLACE),
    ("PersistentVolume", "spec.mountOptions", ["ro"], IN_PLACE),
    ("PersistentVolume", "spec.accessModes", ["ReadWriteMany"], IN_PLACE),
    ("PersistentVolume", "spec.persistentVolumeReclaimPolicy", "Delete", IN_PLACE),
    ("ConfigMap", "data.a", "2", IN_PLACE),
    ("RoleBinding", "roleRef.name", "b", REPLACE),
    ("RoleBinding", "subjects.0.name", "b", IN_PLACE),
    ("Role", "rules.0.verbs", ["get", "list"], IN_PLACE),
    ("PriorityClass", "value", 11, REPLACE),
    ("PriorityClass", "preemptionPolicy", "PreemptLowerPriority", REPLACE),
    ("PriorityClass", "description", "x", IN_PLACE),
    ("ResourceClaimTemplate", "spec.spec.devices.requests.0.exactly.count", 2, REPLACE),
    ("StorageClass", "parameters.a", "2", REPLACE),
    ("StorageClass", "reclaimPolicy", "Delete", REPLACE),
    ("StorageClass", "allowVolumeExpansion", True, IN_PLACE),
    ("ResourceQuota", "spec.hard.cpu", "3", IN_PLACE),
    ("ResourceQuota", "spec.scopes", ["Terminating"], REPLACE),
    ("LimitRange", "spec.limits.0.max.cpu", "3", IN_PLACE),
    ("PodDisruptionBudget", "spec.minAvailable", 2, IN_PLACE),
    ("NetworkPolicy", "spec.policyTypes", ["Egress"], IN_PLACE),
    ("HorizontalPodAutoscaler", "spec.maxReplicas", 3, IN_PLACE),
    *((kind, "metadata.labels.x", "y", METADATA) for kind in OBJECTS),
    *((kind, "metadata.annotations.x", "y", METADATA) for kind in OBJECTS),
]


def body(kind: str) -> Body:
    return {
        "apiVersion": VERSIONS.get(kind, "v1"),
        "kind": kind,
        "metadata": {"name": "a", "labels": {"x": "x"}, "annotations": {"x": "x"}},
        **deepcopy(OBJECTS[kind]),
    }


def changed(old: Body, path: str, value: Any) -> Body:
    """The body with another value at a path; None takes it away."""
    new = deepcopy(old)
    *steps, last = path.split(".")
    at: Any = new
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return new


def disruption(old: Body, new: Body) -> Disruption:
    return worst_disruption(classify_change(old["kind"], change, old)[0] for change in field_differences(old, new))


@pytest.mark.parametrize(("kind", "path", "value", "expected"), CHANGES, ids=lambda value: str(value)[:40])
def test_class(kind: str, path: str, value: Any, expected: Disruption) -> None:
    assert disruption(body(kind), changed(body(kind), path, value)) == expected


def test_every_rule_has_its_say() -> None:
    """No rule stands behind one that takes all of its changes."""
    for index, rule in enumerate(RULES):
        for kind in rule.kinds.split():
            others = [other for other in RULES[:index] if kind in other.kinds.split() or other.kinds == "*"]
            hiding = [path for other in others if other.when is None for path in other.paths.split() or [""]]
            for path in rule.paths.split():
                hides = [other for other in hiding if path == other or path.startswith(f"{other}.") or not other]
                assert not hides, f"{kind} {path} is never reached"


def _apply(kube: KubeClient, manifest: Body, namespace: str, dry_run: bool = False) -> None:
    named = deepcopy(manifest)
    if kube.resource(manifest["apiVersion"], manifest["kind"]).namespaced:
        named["metadata"]["namespace"] = namespace
    else:
        named["metadata"]["name"] = namespace
    kube.apply(named, dry_run=dry_run)


TAKEN = {("Job", "spec.parallelism"), ("Service", "spec.clusterIP")}
"""Changes that Kubernetes would take, but not as they are meant: a distributed run has to learn of its new size, and
a headless Service stays headless in silence. Pulumi replaces both."""


def test_every_object_has_changes_of_its_own() -> None:
    assert {kind for kind, path, *_ in CHANGES if not path.startswith("metadata.")} == set(OBJECTS)


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_the_api_server_refuses_is_replaced(kind: str, kube: KubeClient, namespace: str) -> None:
    old = body(kind)
    _apply(kube, old, namespace)
    try:
        for of, path, value, expected in CHANGES:
            # A claim grows and shrinks only once it is bound, which needs a machine.
            if of != kind or (kind == "PersistentVolumeClaim" and path.endswith("storage")):
                continue
            new = changed(old, path, value)
            if expected < REPLACE or (kind, path) in TAKEN:
                _apply(kube, new, namespace, dry_run=True)
            else:
                with pytest.raises(ApiError, match="422"):
                    _apply(kube, new, namespace, dry_run=True)
    finally:
        if not kube.resource(old["apiVersion"], kind).namespaced:
            kube.delete(old["apiVersion"], kind, namespace)


def manifest(kind: str, **fields: Any) -> Manifest:
    return Manifest(None, "main", {"kind": kind, "apiVersion": "v1", "metadata": {"name": "a"}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (manifest("PersistentVolumeClaim", spec=CLAIM), DATA_LOSS),
        # Bound by name to a volume that stands for a bucket: the bucket stays.
        (manifest("PersistentVolumeClaim", spec={**CLAIM, "volumeName": "bucket"}), IN_PLACE),
        (manifest("PersistentVolumeClaim", spec={"accessModes": ["ReadOnlyMany"]}), IN_PLACE),
        (manifest("PersistentVolume", spec={"persistentVolumeReclaimPolicy": "Retain"}), IN_PLACE),
        (manifest("PersistentVolume", spec={"persistentVolumeReclaimPolicy": "Delete"}), DATA_LOSS),
        (manifest("Namespace"), DATA_LOSS),
        (manifest("StatefulSet", spec={}), REPLACE),
        (
            manifest(
                "StatefulSet",
                spec={"volumeClaimTemplates": [{}], "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}},
            ),
            DATA_LOSS,
        ),
        (manifest("Deployment"), REPLACE),
        (manifest("Node"), IN_PLACE),
        (manifest("ConfigMap"), IN_PLACE),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_deletion(gone: Manifest, expected: Disruption) -> None:
    assert classify_deletion(gone)[0] == expected


def test_taints_that_evict() -> None:
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {}}
    drain = {"key": "k", "effect": "NoExecute"}
    assert disruption(node, changed(node, "spec.taints", [drain])) == POD_RESTART
    assert disruption(node, changed(node, "spec.taints", [{"key": "k", "effect": "NoSchedule"}])) == IN_PLACE
    assert disruption(changed(node, "spec.taints", [drain]), node) == IN_PLACE
    both = changed(node, "spec.taints", [{"key": "other", "effect": "NoSchedule"}, drain])
    assert disruption(changed(node, "spec.taints", [{"key": "other", "effect": "NoSchedule"}]), both) == POD_RESTART


def test_a_volume_of_a_store_is_made_anew_without_loss() -> None:
    old = {"kind": "PersistentVolumeClaim", "spec": {**CLAIM, "volumeName": "bucket"}}
    assert disruption(old, changed(old, "spec.accessModes", ["ReadWriteMany"])) == REPLACE
    assert disruption(old, changed(old, "spec.resources.requests.storage", "1Gi")) == REPLACE
    assert disruption(old, changed(old, "spec.resources.requests.storage", "3Gi")) == IN_PLACE


def test_immutable_configuration_is_made_anew() -> None:
    old = {"kind": "ConfigMap", "data": {"a": "1"}, "immutable": True}
    assert disruption(old, changed(old, "data.a", "2")) == REPLACE


def test_order_inside_a_pod_template_restarts_pods() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    old = body("Deployment")
    old["spec"]["template"]["spec"]["containers"][0] = {**CONTAINER, "env": env}
    new = changed(old, "spec.template.spec.containers.0.env", env[::-1])
    assert disruption(old, new) == POD_RESTART


def test_a_rollout_in_steps_is_no_rolling_restart() -> None:
    old = body("Deployment")
    old["metadata"] = {"name": "chat", "annotations": {names.ROLLOUT: "{}"}}
    change = field_differences(old, changed(old, "spec.template.spec.terminationGracePeriodSeconds", 7))[0]
    assert classify_change("Deployment", change, old) == (POD_RESTART, "canary or blue-green rollout")
    assert classify_change("Deployment", change, body("Deployment")) == (POD_RESTART, "rolling restart")
