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
    entries,
    in_list,
    in_mapping,
    mapping,
    mappings,
    only,
    walk,
)
from avactl.change.diff.rights.pods import pod
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
        yield from _routes(scope)
    yield from walk(scope, body, {"apiVersion": HARMLESS, "kind": HARMLESS, "metadata": _METADATA, **(known or {})})
    if known is None:
        yield from _pods_inside(scope, body)
    for name in dict.fromkeys(_secrets(body)):
        yield scope.right("Secret", name)


def _secrets(value: Any) -> Iterator[str]:
    """Yield the names of the Secrets that an object refers to, in any field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            named = "secret" in str(key).lower()
            if named and isinstance(inner, dict):
                yield from (inner[each] for each in ("name", "secretName") if isinstance(inner.get(each), str))
            elif named and isinstance(inner, str) and key in ("secretName", "secret"):
                yield inner
            elif key == "imagePullSecrets":
                yield from (each["name"] for each in mappings(inner) if isinstance(each.get("name"), str))
            yield from _secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets(inner)


def _pods_inside(scope: Scope, value: Any) -> Iterator[Right]:
    """Yield the rights of pods anywhere in an object of an unknown kind."""
    if isinstance(value, dict):
        if any("image" in each for each in mappings(value.get("containers"))):
            yield from (right for right in pod(scope, value) if right.what != "sets")
            return
        for key, inner in value.items():
            yield from _pods_inside(scope.at(key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _pods_inside(scope.entry(inner, number), inner)


# -- roles and webhooks ----------------------------------------------------------------------------------------------


def _subject(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    body = scope.manifest.body
    of_cluster = scope.manifest.kind == "ClusterRoleBinding"
    if scope.compiled and value.get("kind") == "ServiceAccount" and not of_cluster:
        return
    role = mapping(body.get("roleRef")).get("name")
    name = value.get("name")
    if not scope.compiled and value.get("namespace"):
        name = f"{value['namespace']}/{name}"
    where = "" if scope.compiled else " everywhere" if of_cluster else f" in {scope.manifest.namespace}"
    yield scope.right("grants", f"{role} to {value.get('kind')} {name}{where}")


def _rule(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    verbs = phrases.listed(value.get("verbs"))
    where = [phrases.listed(value.get(key)) for key in ("resources", "nonResourceURLs") if value.get(key)]
    groups = phrases.listed([group or "core" for group in entries(value.get("apiGroups"))])
    only_names = phrases.listed(value.get("resourceNames"))
    text = f"{verbs} on {', '.join(where)}" + (f" of {groups}" if groups else "")
    yield scope.right("allows", text + (f" named {only_names}" if only_names else ""))


def _webhook(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    yield scope.right("calls", f"{_target(value.get('clientConfig'))} for {_matched(value.get('rules'))}")
    for key, inner in value.items():
        yield from walk(scope.at(key), inner, _WEBHOOK.get(key))


def _target(config: Any) -> str:
    config = mapping(config)
    service = mapping(config.get("service"))
    if config.get("url"):
        return str(config["url"])
    port = f":{service['port']}" if service.get("port") else ""
    return f"Service {service.get('namespace')}/{service.get('name')}{port}{service.get('path') or ''}"


def _matched(rules: Any) -> str:
    found = [
        f"{phrases.listed(rule.get('operations'))} of {phrases.listed(rule.get('resources'))}"
        for rule in mappings(rules)
    ]
    return "; ".join(found) or "no objects"


def _conversion(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    config = mapping(mapping(value.get("webhook")).get("clientConfig"))
    if config:
        yield scope.right("calls", f"{_target(config)} to convert objects")
    elif value.get("strategy") != "None":
        yield from scope.sets(value)


def _served(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    version = f"{value.get('group')}/{value.get('version')}"
    yield scope.right("serves", f"{version} by {_target({'service': value.get('service')})}")
    rest = {key: inner for key, inner in value.items() if key not in ("group", "version", "service", "caBundle")}
    yield from walk(scope, rest, {"groupPriorityMinimum": HARMLESS, "versionPriority": HARMLESS})


def _labels(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    for key, inner in value.items():
        if key == _ENFORCED:
            if inner != _STRICTEST:
                yield scope.right("pod security", f"{inner} in {scope.manifest.name}")
        elif not (key in _LABELS or str(key).startswith(_OF_RELEASES)):
            yield from scope.at(key).sets(inner)


def _notes(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    for key, inner in value.items():
        if not str(key).startswith(_OF_RELEASES):
            yield from scope.at(key).sets(inner)


# -- routes ----------------------------------------------------------------------------------------------------------


def _routes(scope: Scope) -> Iterator[Right]:
    """Yield the URLs under which a route is reached from outside of the cluster."""
    spec = mapping(scope.manifest.body.get("spec"))
    if scope.manifest.kind == "Ingress":
        for rule in mappings(spec.get("rules")):
            for entry in mappings(mapping(rule.get("http")).get("paths")):
                yield scope.right("reachable at", f"{rule.get('host') or '*'}{entry.get('path') or '/'}")
        return
    grpc = scope.manifest.kind == "GRPCRoute"
    matches = [match for rule in _rules(scope.manifest.body) for match in mappings(rule.get("matches")) or [{}]]
    if grpc:
        paths = [f"/{mapping(match.get('method')).get('service') or ''}" for match in matches]
    else:
        paths = [mapping(match.get("path")).get("value") or "/" for match in matches]
    hosts = spec.get("hostnames")
    for host in hosts if isinstance(hosts, list) and hosts else ("*",):
        for path in paths:
            yield scope.right("reachable at", f"{host}{path}" + (" by gRPC" if grpc else ""))


def _rules(body: Body) -> list[Body]:
    """Return the rules of a route; those of a canary are in its annotation."""
    rules = mappings(mapping(body.get("spec")).get("rules"))
    notes = body["metadata"].get("annotations") or {}
    if rules or names.ROLLOUT_ROUTE not in notes:
        return rules
    try:
        return [dict(rule) for rule in load(RouteRules, notes[names.ROLLOUT_ROUTE]).root]
    except DocumentError:  # a patch can have changed it
        return []


# -- tables ----------------------------------------------------------------------------------------------------------

_OF_RELEASES = ("app.kubernetes.io/", "helm.sh/", "checksum/")
_LABELS = frozenset((f"{names.GROUP}/team", "app", "chart", "component", "heritage", "k8s-app", "release", "version"))
_METADATA: Table = {
    "name": HARMLESS,
    "namespace": HARMLESS,
    "labels": in_mapping(_labels),
    "annotations": in_mapping(_notes),
}
"""Also those of pod templates. Finalizers, owners, and annotations that other controllers obey are shown."""
_TEMPLATE: Table = {"metadata": _METADATA, "spec": pod}
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
_ADMISSION: Table = {"webhooks": in_list(_webhook)}
_WEBHOOK: Table = {
    "name": HARMLESS,
    "clientConfig": HARMLESS,
    "rules": HARMLESS,
    "admissionReviewVersions": HARMLESS,
    "timeoutSeconds": HARMLESS,
}
_ROLE: Table = {"rules": in_list(_rule)}
_BINDING: Table = {"subjects": in_list(_subject), "roleRef": HARMLESS}
_ROUTE: Table = {
    "hostnames": HARMLESS,
    "parentRefs": HARMLESS,
    "rules": {
        "name": HARMLESS,
        "matches": HARMLESS,
        "backendRefs": {"name": HARMLESS, "port": HARMLESS, "weight": HARMLESS},
    },
}
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_KINDS: Mapping[str, Table] = {
    **{
        f"apps/{kind}": {"spec": {**_ROLLS_OUT, "volumeClaimTemplates": {"metadata": _METADATA, "spec": _CLAIM}}}
        for kind in _WORKLOADS
    },
    "/Pod": {"spec": pod},
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
    "/ServiceAccount": {"imagePullSecrets": HARMLESS, "automountServiceAccountToken": only(False)},
    "/Service": {
        "spec": {
            "type": only("ClusterIP"),
            "selector": HARMLESS,
            "clusterIP": only("None"),
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
    "apiregistration.k8s.io/APIService": {"spec": in_mapping(_served)},
    "apiextensions.k8s.io/CustomResourceDefinition": {
        "spec": {
            "group": HARMLESS,
            "names": HARMLESS,
            "scope": HARMLESS,
            "versions": HARMLESS,
            "conversion": in_mapping(_conversion),
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
