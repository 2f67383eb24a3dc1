"""Builders for Kubernetes objects, shared by the lowerings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from avactl.contracts import names
from avactl.program.lowering.storage import class_name
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program, name_label
from avactl.spec.schema.base import GROUP

RBAC = "rbac.authorization.k8s.io"
"""API group of roles and their bindings."""


def role_reference(kind: str, name: str) -> dict[str, str]:
    """Return the `roleRef` of a binding to a Role or a ClusterRole, or a group as its subject."""
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def object_labels(item: Item, component: str | None = None) -> dict[str, str]:
    """Labels of every object of a spec: Kubernetes' recommended labels, and avactl's own."""
    metadata = item.resource.metadata
    result = {
        names.MANAGED_BY: names.MANAGER,
        "app.kubernetes.io/name": name_label(item.kind),
        "app.kubernetes.io/instance": item.name,
        **metadata.labels,
    }
    if component:
        result["app.kubernetes.io/component"] = component
    if item.team:
        result[f"{GROUP}/team"] = item.team
    return result


def component_selector(item: Item, component: str) -> dict[str, str]:
    """Labels that select the pods of one component of one spec."""
    return {
        "app.kubernetes.io/name": name_label(item.kind),
        "app.kubernetes.io/instance": item.name,
        "app.kubernetes.io/component": component,
    }


def build_manifest(
    item: Item,
    cluster: str,
    api_version: str,
    kind: str,
    name: str,
    *,
    namespace: str | None = None,
    component: str | None = None,
    extra_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    holds_data: bool = False,
    patch: bool = False,
    owned: tuple[str, ...] = (),
    **fields: Any,
) -> Manifest:
    """Build an object with avactl's labels; `fields` are its other top-level keys (`spec`, `data`, `rules`, …).

    Fields that are None are omitted.
    """
    metadata: Body = {"name": name, "labels": {**object_labels(item, component), **(extra_labels or {})}}
    if namespace is not None:
        metadata["namespace"] = namespace
    notes = {**item.resource.metadata.annotations, **(annotations or {})}
    if notes:
        metadata["annotations"] = notes
    body: Body = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    body.update((key, value) for key, value in fields.items() if value is not None)
    return Manifest(item, cluster, body, holds_data=holds_data, patch=patch, owned=owned)


def admission_policy(
    item: Item, cluster: str, name: str, spec: Body, rules: Iterable[tuple[str, str]], **more: Any
) -> list[Manifest]:
    """Build a ValidatingAdmissionPolicy and its binding. `rules`: CEL expressions that must hold, and the messages."""
    validations = [{"expression": text, "message": message, "reason": "Forbidden"} for text, message in rules]
    version, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
    body = {**spec, "failurePolicy": "Fail", "validations": validations}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        build_manifest(item, cluster, version, kind, name, spec=body, **more),
        build_manifest(item, cluster, version, f"{kind}Binding", name, spec=binding, **more),
    ]


def drop_none(**fields: Any) -> Body:
    """Return a mapping without the fields that are None."""
    return {key: value for key, value in fields.items() if value is not None}


def json_text(value: Any) -> str:
    """Return stable JSON for ConfigMaps: sorted keys, two-space indent, trailing newline."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, option=options).decode()


def json_line(value: Any) -> str:
    """Return stable JSON for annotations: sorted keys, one line."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def short_digest(value: Any, length: int = 10) -> str:
    """Return a short stable hash of plain data, for annotations that restart pods on configuration changes."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:length]


def short_name(text: str, longest: int) -> str:
    """Return a name within the length limit; a truncated name ends with a digest of the full name."""
    return text if len(text) <= longest else f"{text[: longest - 7].rstrip('-')}-{short_digest(text, 6)}"


def config_map(item: Item, cluster: str, name: str, namespace: str, data: Mapping[str, str], **more: Any) -> Manifest:
    """Build a ConfigMap."""
    return build_manifest(item, cluster, "v1", "ConfigMap", name, namespace=namespace, data=dict(data), **more)


def build_service(
    item: Item,
    cluster: str,
    name: str,
    namespace: str,
    select: Mapping[str, str],
    ports: Mapping[str, int],
    *,
    headless: bool = False,
    publish_not_ready: bool = False,
    component: str | None = None,
) -> Manifest:
    """Build a Service; `ports` by name. `headless` gives each pod its own address."""
    spec = drop_none(
        selector=dict(select),
        ports=[{"name": port, "port": number, "targetPort": number} for port, number in ports.items()] or None,
        clusterIP="None" if headless else None,
        publishNotReadyAddresses=True if publish_not_ready else None,
    )
    return build_manifest(item, cluster, "v1", "Service", name, namespace=namespace, component=component, spec=spec)


def disruption_budget(
    item: Item,
    cluster: str,
    name: str,
    namespace: str,
    select: Mapping[str, str],
    *,
    component: str,
    without: str | None = None,
    **spec: Any,
) -> Manifest:
    """Build a PodDisruptionBudget of pods without the label `without`; `spec` is `minAvailable` or `maxUnavailable`."""
    selector: Body = {"matchLabels": dict(select)}
    if without:
        selector["matchExpressions"] = [{"key": without, "operator": "DoesNotExist"}]
    return build_manifest(
        item,
        cluster,
        "policy/v1",
        "PodDisruptionBudget",
        name,
        namespace=namespace,
        component=component,
        spec={"selector": selector, **spec},
    )


def policy_rule(groups: Iterable[str], resources: Iterable[str], verbs: Iterable[str], **more: Any) -> Body:
    """Build one RBAC rule."""
    return {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs), **more}


def volume_claim(
    item: Item,
    program: Program,
    cluster: str,
    name: str,
    namespace: str,
    size: str,
    *,
    use: str,
    keep: bool,
    component: str | None = None,
    mode: str = "ReadWriteOnce",
) -> Manifest:
    """Build a PersistentVolumeClaim of `size` bytes; `keep`: it holds data that outlives the spec."""
    spec = drop_none(
        accessModes=[mode],
        resources={"requests": {"storage": size}},
        storageClassName=class_name(program, cluster, use),
    )
    return build_manifest(
        item,
        cluster,
        "v1",
        "PersistentVolumeClaim",
        name,
        namespace=namespace,
        component=component,
        holds_data=keep,
        spec=spec,
    )
