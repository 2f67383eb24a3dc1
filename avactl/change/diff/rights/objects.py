"""Rights of objects: roles, webhooks and routes, and for each kind the fields that give none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from avactl.change.diff import phrases
from avactl.change.diff.rights.model import (
    HARMLESS,
    Right,
    Scope,
    Table,
    as_mapping,
    as_mappings,
    harmless_values,
    in_list,
    in_mapping,
    list_entries,
    walk,
)
from avactl.change.diff.rights.pods import pod_rights
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.serving import RouteRules
from avactl.program.manifest import Body

_ENFORCED, _STRICTEST = "pod-security.kubernetes.io/enforce", "restricted"
"""Label of namespaces, and its value in which pods have no access to machines."""


def of_object(scope: Scope) -> Iterator[Right]:
    """Yield the rights of a whole object."""
    body = scope.manifest.body
    kind = scope.manifest.kind
    known = _KINDS.get(f"{body['apiVersion'].rpartition('/')[0]}/{kind}")
    if kind == "ServiceAccount":
        yield scope.right("service account", scope.manifest.name)
    if kind in ("Ingress", "HTTPRoute", "GRPCRoute"):
        yield from _route_rights(scope)
    yield from walk(scope, body, {"apiVersion": HARMLESS, "kind": HARMLESS, "metadata": _METADATA, **(known or {})})
    if known is None:
        yield from _pods_inside(scope, body)
    for name in dict.fromkeys(_referenced_secrets(body)):
        yield scope.right("Secret", name)


def _referenced_secrets(value: Any) -> Iterator[str]:
    """Yield the names of the Secrets that an object refers to, in any field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            named = "secret" in str(key).lower()
            if named and isinstance(inner, dict):
                yield from (inner[each] for each in ("name", "secretName") if isinstance(inner.get(each), str))
            elif named and isinstance(inner, str) and key in ("secretName", "secret"):
                yield inner
            elif key == "imagePullSecrets":
                yield from (each["name"] for each in as_mappings(inner) if isinstance(each.get("name"), str))
            yield from _referenced_secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _referenced_secrets(inner)


def _pods_inside(scope: Scope, value: Any) -> Iterator[Right]:
    """Yield the rights of pods anywhere in an object of an unknown kind."""
    if isinstance(value, dict):
        if any("image" in each for each in as_mappings(value.get("containers"))):
            yield from (right for right in pod_rights(scope, value) if right.what != "sets")
            return
        for key, inner in value.items():
            yield from _pods_inside(scope.at(key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _pods_inside(scope.entry(inner, number), inner)


# -- roles and webhooks ----------------------------------------------------------------------------------------------


def _subject_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    body = scope.manifest.body
    of_cluster = scope.manifest.kind == "ClusterRoleBinding"
    if scope.compiled and value.get("kind") == "ServiceAccount" and not of_cluster:
        return
    role = as_mapping(body.get("roleRef")).get("name")
    name = value.get("name")
    if not scope.compiled and value.get("namespace"):
        name = f"{value['namespace']}/{name}"
    where = "" if scope.compiled else " everywhere" if of_cluster else f" in {scope.manifest.namespace}"
    yield scope.right("grants", f"{role} to {value.get('kind')} {name}{where}")


def _rule_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    verbs = phrases.join_values(value.get("verbs"))
    where = [phrases.join_values(value.get(key)) for key in ("resources", "nonResourceURLs") if value.get(key)]
    groups = phrases.join_values([group or "core" for group in list_entries(value.get("apiGroups"))])
    only_names = phrases.join_values(value.get("resourceNames"))
    text = f"{verbs} on {', '.join(where)}" + (f" of {groups}" if groups else "")
    yield scope.right("allows", text + (f" named {only_names}" if only_names else ""))


def _webhook_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    yield scope.right(
        "calls", f"{_webhook_target(value.get('clientConfig'))} for {_matched_resources(value.get('rules'))}"
    )
    for key, inner in value.items():
        yield from walk(scope.at(key), inner, _WEBHOOK.get(key))


def _webhook_target(config: Any) -> str:
    config = as_mapping(config)
    service = as_mapping(config.get("service"))
    if config.get("url"):
        return str(config["url"])
    port = f":{service['port']}" if service.get("port") else ""
    return f"Service {service.get('namespace')}/{service.get('name')}{port}{service.get('path') or ''}"


def _matched_resources(rules: Any) -> str:
    found = [
        f"{phrases.join_values(rule.get('operations'))} of {phrases.join_values(rule.get('resources'))}"
        for rule in as_mappings(rules)
    ]
    return "; ".join(found) or "no objects"


def _conversion_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    config = as_mapping(as_mapping(value.get("webhook")).get("clientConfig"))
    if config:
        yield scope.right("calls", f"{_webhook_target(config)} to convert objects")
    elif value.get("strategy") != "None":
        yield from scope.sets(value)


def _served_version_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    version = f"{value.get('group')}/{value.get('version')}"
    yield scope.right("serves", f"{version} by {_webhook_target({'service': value.get('service')})}")
    rest = {key: inner for key, inner in value.items() if key not in ("group", "version", "service", "caBundle")}
    yield from walk(scope, rest, {"groupPriorityMinimum": HARMLESS, "versionPriority": HARMLESS})


def _label_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    for key, inner in value.items():
        if key == _ENFORCED:
            if inner != _STRICTEST:
                yield scope.right("pod security", f"{inner} in {scope.manifest.name}")
        elif not (key in _HARMLESS_LABELS or str(key).startswith(_OF_RELEASES)):
            yield from scope.at(key).sets(inner)


def _annotation_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    for key, inner in value.items():
        if not str(key).startswith(_OF_RELEASES):
            yield from scope.at(key).sets(inner)


# -- routes ----------------------------------------------------------------------------------------------------------


def _route_rights(scope: Scope) -> Iterator[Right]:
    """Yield the URLs under which a route is reached from outside of the cluster."""
    spec = as_mapping(scope.manifest.body.get("spec"))
    if scope.manifest.kind == "Ingress":
        for rule in as_mappings(spec.get("rules")):
            for entry in as_mappings(as_mapping(rule.get("http")).get("paths")):
                yield scope.right("reachable at", f"{rule.get('host') or '*'}{entry.get('path') or '/'}")
        return
    grpc = scope.manifest.kind == "GRPCRoute"
    matches = [
        match for rule in _route_rules(scope.manifest.body) for match in as_mappings(rule.get("matches")) or [{}]
    ]
    if grpc:
        paths = [f"/{as_mapping(match.get('method')).get('service') or ''}" for match in matches]
    else:
        paths = [as_mapping(match.get("path")).get("value") or "/" for match in matches]
    hosts = spec.get("hostnames")
    for host in hosts if isinstance(hosts, list) and hosts else ("*",):
        for path in paths:
            yield scope.right("reachable at", f"{host}{path}" + (" by gRPC" if grpc else ""))


def _route_rules(body: Body) -> list[Body]:
    """Return the rules of a route; those of a canary are in its annotation."""
    rules = as_mappings(as_mapping(body.get("spec")).get("rules"))
    notes = body["metadata"].get("annotations") or {}
    if rules or names.ROLLOUT_ROUTE not in notes:
        return rules
    try:
        return [dict(rule) for rule in load(RouteRules, notes[names.ROLLOUT_ROUTE]).root]
    except DocumentError:  # a patch can have changed it
        return []


# -- tables ----------------------------------------------------------------------------------------------------------

_OF_RELEASES = ("app.kubernetes.io/", "helm.sh/", "checksum/")
_HARMLESS_LABELS = frozenset(
    (f"{names.GROUP}/team", "app", "chart", "component", "heritage", "k8s-app", "release", "version")
)
_METADATA: Table = {
    "name": HARMLESS,
    "namespace": HARMLESS,
    "labels": in_mapping(_label_rights),
    "annotations": in_mapping(_annotation_rights),
}
"""Also those of pod templates. Finalizers, owners, and annotations that other controllers obey are shown."""
_TEMPLATE: Table = {"metadata": _METADATA, "spec": pod_rights}
_ROLLS_OUT: Table = {
    "replicas": HARMLESS,
    "selector": HARMLESS,
    "strategy": HARMLESS,
    "updateStrategy": HARMLESS,
    "minReadySeconds": HARMLESS,
    "revisionHistoryLimit": HARMLESS,
    "progressDeadlineSeconds": HARMLESS,
    "paused": HARMLESS,
    "serviceName": HARMLESS,
    "podManagementPolicy": HARMLESS,
    "template": _TEMPLATE,
}
_JOB: Table = {
    "parallelism": HARMLESS,
    "completions": HARMLESS,
    "backoffLimit": HARMLESS,
    "backoffLimitPerIndex": HARMLESS,
    "activeDeadlineSeconds": HARMLESS,
    "ttlSecondsAfterFinished": HARMLESS,
    "completionMode": HARMLESS,
    "suspend": HARMLESS,
    "podFailurePolicy": HARMLESS,
    "successPolicy": HARMLESS,
    "template": _TEMPLATE,
}
_CLAIM: Table = {
    "accessModes": HARMLESS,
    "resources": {"requests": HARMLESS, "limits": HARMLESS},
    "storageClassName": HARMLESS,
    "volumeMode": HARMLESS,
}
_ADMISSION: Table = {"webhooks": in_list(_webhook_rights)}
_WEBHOOK: Table = {
    "name": HARMLESS,
    "clientConfig": HARMLESS,
    "rules": HARMLESS,
    "admissionReviewVersions": HARMLESS,
    "timeoutSeconds": HARMLESS,
}
_ROLE: Table = {"rules": in_list(_rule_rights)}
_BINDING: Table = {"subjects": in_list(_subject_rights), "roleRef": HARMLESS}
_ROUTE: Table = {
    "hostnames": HARMLESS,
    "parentRefs": HARMLESS,
    "rules": {
        "name": HARMLESS,
        "matches": HARMLESS,
        "backendRefs": {"name": HARMLESS, "port": HARMLESS, "weight": HARMLESS},
    },
}
_WORKLOAD_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_KINDS: Mapping[str, Table] = {
    **{
        f"apps/{kind}": {"spec": {**_ROLLS_OUT, "volumeClaimTemplates": {"metadata": _METADATA, "spec": _CLAIM}}}
        for kind in _WORKLOAD_KINDS
    },
    "/Pod": {"spec": pod_rights},
    "batch/Job": {"spec": _JOB},
    "batch/CronJob": {
        "spec": {
            "schedule": HARMLESS,
            "timeZone": HARMLESS,
            "concurrencyPolicy": HARMLESS,
            "suspend": HARMLESS,
            "startingDeadlineSeconds": HARMLESS,
            "successfulJobsHistoryLimit": HARMLESS,
            "failedJobsHistoryLimit": HARMLESS,
            "jobTemplate": {"metadata": _METADATA, "spec": _JOB},
        }
    },
    "leaderworkerset.x-k8s.io/LeaderWorkerSet": {
        "spec": {
            "replicas": HARMLESS,
            "rolloutStrategy": HARMLESS,
            "startupPolicy": HARMLESS,
            "networkConfig": HARMLESS,
            "leaderWorkerTemplate": {
                "size": HARMLESS,
                "restartPolicy": HARMLESS,
                "leaderTemplate": _TEMPLATE,
                "workerTemplate": _TEMPLATE,
            },
        }
    },
    "/ConfigMap": {"data": HARMLESS, "binaryData": HARMLESS, "immutable": HARMLESS},
    "/PersistentVolumeClaim": {"spec": _CLAIM},
    "/Namespace": {},
    "/ServiceAccount": {"imagePullSecrets": HARMLESS, "automountServiceAccountToken": harmless_values(False)},
    "/Service": {
        "spec": {
            "type": harmless_values("ClusterIP"),
            "selector": HARMLESS,
            "clusterIP": harmless_values("None"),
            "sessionAffinity": HARMLESS,
            "ports": {
                "name": HARMLESS,
                "port": HARMLESS,
                "targetPort": HARMLESS,
                "protocol": HARMLESS,
                "appProtocol": HARMLESS,
            },
            "publishNotReadyAddresses": HARMLESS,
            "ipFamilyPolicy": HARMLESS,
            "ipFamilies": HARMLESS,
        }
    },
    "networking.k8s.io/Ingress": {
        "spec": {
            "rules": HARMLESS,
            "ingressClassName": HARMLESS,
            "tls": {"hosts": HARMLESS, "secretName": HARMLESS},
        }
    },
    "networking.k8s.io/NetworkPolicy": {"spec": {"podSelector": HARMLESS, "policyTypes": HARMLESS}},
    "gateway.networking.k8s.io/HTTPRoute": {"spec": _ROUTE},
    "gateway.networking.k8s.io/GRPCRoute": {"spec": _ROUTE},
    "policy/PodDisruptionBudget": {"spec": HARMLESS},
    "autoscaling/HorizontalPodAutoscaler": {"spec": HARMLESS},
    "rbac.authorization.k8s.io/Role": _ROLE,
    "rbac.authorization.k8s.io/ClusterRole": _ROLE,
    "rbac.authorization.k8s.io/RoleBinding": _BINDING,
    "rbac.authorization.k8s.io/ClusterRoleBinding": _BINDING,
    "admissionregistration.k8s.io/ValidatingWebhookConfiguration": _ADMISSION,
    "admissionregistration.k8s.io/MutatingWebhookConfiguration": _ADMISSION,
    "apiregistration.k8s.io/APIService": {"spec": in_mapping(_served_version_rights)},
    "apiextensions.k8s.io/CustomResourceDefinition": {
        "spec": {
            "group": HARMLESS,
            "names": HARMLESS,
            "scope": HARMLESS,
            "versions": HARMLESS,
            "conversion": in_mapping(_conversion_rights),
        }
    },
}
"""Group and kind → the fields that are known: a field, or a kind, that is not here is shown."""
DELETABLE = frozenset(
    (
        "ConfigMap",
        "CronJob",
        "DaemonSet",
        "Deployment",
        "HorizontalPodAutoscaler",
        "Ingress",
        "Job",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "ReplicaSet",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "Service",
        "ServiceAccount",
        "StatefulSet",
    )
)
"""Kinds whose objects restrict nobody: deleting one widens no right."""
