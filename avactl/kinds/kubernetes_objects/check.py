"""Checks of manifests: schema, names, places, and what a team may have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from avactl.contracts.foreign_keys import ADMIN_ACCESS_LABEL
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.secrets import looks_secret
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.kinds.kubernetes_objects import tenancy
from avactl.kinds.kubernetes_objects.lower import namespace_of
from avactl.kinds.kubernetes_objects.sources import ObjectSource, manifest_sources
from avactl.kinds.kubernetes_objects.spec import KubernetesObjectsSpec
from avactl.kinds.team.names import team_namespaces
from avactl.program import kubernetes_schema
from avactl.program.kubernetes_schema import rules
from avactl.program.program import Item, Program

_MAX_PROBLEMS = 50
"""Problems reported per spec."""
_ALLOWED_KINDS = frozenset(
    (
        "Namespace",
        "ServiceAccount",
        "ResourceQuota",
        "LimitRange",
        "ConfigMap",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Service",
        "DaemonSet",
        "StatefulSet",
        "Deployment",
        "Job",
        "CronJob",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "HTTPRoute",
        "GRPCRoute",
        "Ingress",
        "PriorityClass",
        "StorageClass",
        "DeviceClass",
        "ResourceClaimTemplate",
        "ComputeDomain",
        "PodMonitor",
        "PrometheusRule",
        "ScaledObject",
        "AlertmanagerConfig",
        "LeaderWorkerSet",
        "DisaggregatedSet",
        "InferencePool",
        "Role",
        "RoleBinding",
    )
)
"""Kinds that the account of `avactl reconcile` may write."""
_MAX_SHOWN = 80
_IS_API_VERSION = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?v[a-z0-9]{1,30}"
).fullmatch
_IS_KIND = re.compile("[A-Za-z][A-Za-z0-9]{0,62}").fullmatch
_IS_NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9._:@-]{0,251}[A-Za-z0-9])?").fullmatch
"""Names become paths of files and URLs. RBAC's may have colons; the API server knows what else each kind allows."""
_IS_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch


def check(item: Item[KubernetesObjectsSpec], program: Program) -> Iterable[Diagnostic]:
    """Return the problems of one spec."""
    given = manifest_sources(item, program)
    found = list(given.problems)
    if not item.spec.objects and not item.spec.files:
        hint = "add `objects: […]`, or `files: [DIRECTORY]`"
        found.append(Diagnostic("missing-key", "`spec` has no manifests", item.span("spec", key=True), hint=hint))
    if item.team and item.spec.namespace not in (None, *team_namespaces(program.team(item.team))):
        message = f"`{item.spec.namespace}` is not a namespace of team {item.team}"
        hint = did_you_mean(str(item.spec.namespace), team_namespaces(program.team(item.team)), "its namespaces")
        found.append(Diagnostic("missing-reference", message, item.span("spec", "namespace"), hint=hint))
        return found
    seen: dict[tuple[str, ...], ObjectSource] = {}
    for source in given.found:
        problems = list(islice(_check_manifest(item, program, source), _MAX_PROBLEMS))
        if not problems:
            body = source.value
            id_ = (body["apiVersion"], body["kind"], namespace_of(item, body) or "", body["metadata"]["name"])
            other = seen.setdefault(id_, source)
            if other is not source:
                message = f"{body['kind']} `{body['metadata']['name']}` is listed twice"
                notes = (Note(other.span("metadata", "name"), "first occurrence"),)
                span, hint = source.span("metadata", "name"), "remove one of them"
                problems = [Diagnostic("duplicate-entry", message, span, hint=hint, notes=notes)]
        found += problems
        if len(found) > _MAX_PROBLEMS:
            break
    return found[:_MAX_PROBLEMS]


def _check_manifest(item: Item[KubernetesObjectsSpec], program: Program, source: ObjectSource) -> Iterator[Diagnostic]:
    body = source.value
    shape = _shape_problem(source)
    if shape is not None:
        yield shape
        return
    version, kind = body["apiVersion"], body["kind"]
    schema = kubernetes_schema.find(version, kind)
    group = version.rpartition("/")[0]
    # Operators have kinds of the same names in groups of their own: a Job of Volcano, a Service of Knative.
    known = kubernetes_schema.api_versions(kind) if "." not in group or group.endswith(".k8s.io") else []
    if schema is None and (known or "." not in version.partition("/")[0]):
        hint = f"write `apiVersion: {known[0]}`" if known else "`kubectl api-resources` lists the kinds"
        message = f"Kubernetes 1.36 has no {kind} in `{version}`"
        yield Diagnostic("manifest-invalid", message, source.span("apiVersion"), hint=hint)
        return
    if kind == "Secret" and (body.get("data") or body.get("stringData")):
        # Before the types, whose problems quote the value.
        message = f"Secret `{body['metadata']['name']}` is visible to everyone with access to the repository"
        hint = "create it separately, or by an operator such as External Secrets"
        yield Diagnostic("credential-literal", message, source.span("kind"), hint=hint)
        return
    wrong = False
    for violation in kubernetes_schema.schema_violations(schema or kubernetes_schema.ANY, body):
        wrong = True
        message = f"{kind} `{body['metadata']['name']}`: {violation.message}"
        span = source.span(*violation.path, key=violation.at_key)
        yield Diagnostic("manifest-invalid", message, span, hint=violation.hint)
    if wrong:
        return
    for refusal in rules.rule_violations(body) if schema else kubernetes_schema.duplicate_violations(body):
        message = f"{kind} `{body['metadata']['name']}`: {refusal.message}"
        yield Diagnostic("manifest-invalid", message, source.span(*refusal.path), hint=refusal.hint)
    if kind == "Namespace" and ADMIN_ACCESS_LABEL in (body["metadata"].get("labels") or {}):
        message = f"label `{ADMIN_ACCESS_LABEL}` gives claims in the namespace all devices, also those in use"
        span = source.span("metadata", "labels", ADMIN_ACCESS_LABEL, key=True)
        yield Diagnostic("manifest-not-allowed", message, span, hint="an administrator sets it, by `kubectl label`")
    yield from _check_credentials(source)
    yield from _check_rights(item, program, source, bool(schema))


def _shape_problem(source: ObjectSource) -> Diagnostic | None:
    body = source.value
    if not isinstance(body, dict):
        span, hint = source.span(), "write `apiVersion`, `kind` and `metadata`"
        return Diagnostic("manifest-invalid", "this is not a Kubernetes object", span, hint=hint)
    for key in ("apiVersion", "kind"):
        if not isinstance(body.get(key), str) or not body[key]:
            return Diagnostic("manifest-invalid", f"the object has no `{key}`", source.span(), hint=f"add `{key}: …`")
        if not (_IS_KIND if key == "kind" else _IS_API_VERSION)(body[key]) or len(body[key]) > 253:
            message, hint = (
                f"`{body[key][:_MAX_SHOWN]}` is not a valid {key}",
                "`kubectl api-resources` lists the kinds",
            )
            return Diagnostic("manifest-invalid", message, source.span(key), hint=hint)
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        generate = isinstance(metadata, dict) and "generateName" in metadata
        hint = "write `name` in place of `generateName`" if generate else "add `metadata: {name: …}`"
        return Diagnostic("manifest-invalid", f"the {body['kind']} has no name", source.span(), hint=hint)
    for key, valid in (("name", _IS_NAME), ("namespace", _IS_NAMESPACE)):
        given = metadata.get(key)
        if given is not None and not (isinstance(given, str) and valid(given)):
            message, hint = f"`{str(given)[:_MAX_SHOWN]}` is not a valid {key}", "use letters, digits, `-` and `.`"
            return Diagnostic("manifest-invalid", message, source.span("metadata", key), hint=hint)
    for group in ("labels", "annotations"):
        given = metadata.get(group) or {}
        wrong = not isinstance(given, dict)
        if wrong or any(not isinstance(value, str) for value in given.values()):
            span = source.span("metadata", group)
            return Diagnostic("manifest-invalid", f"`{group}` has values that are no text", span, hint="quote them")
    return None


def _check_credentials(source: ObjectSource) -> Iterator[Diagnostic]:
    """Yield variables and entries of ConfigMaps that look like credentials."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), source.value)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, list):
            pending += [((*path, index), each) for index, each in enumerate(value)]
        elif isinstance(value, dict):
            pending += [((*path, key), each) for key, each in value.items()]
            name, text = value.get("name"), value.get("value")
            if isinstance(name, str) and isinstance(text, str) and looks_secret(text, name):
                yield _credential_problem(name, source.span(*path, "value"))
    body = source.value
    if body["kind"] == "ConfigMap":
        for name, text in (body.get("data") or {}).items():
            if isinstance(text, str) and looks_secret(text, name):
                yield _credential_problem(name, source.span("data", name))


def _credential_problem(name: str, span: Span) -> Diagnostic:
    message = f"`{name}` looks like a credential and is visible to everyone with access to the repository"
    return Diagnostic("credential-literal", message, span, hint="use a Secret: `valueFrom: {secretKeyRef: …}`")


def _check_rights(
    item: Item[KubernetesObjectsSpec], program: Program, source: ObjectSource, known: bool
) -> Iterator[Diagnostic]:
    body = source.value
    kind, namespace = body["kind"], namespace_of(item, body)
    if item.team is None:
        if namespace is None and kubernetes_schema.is_namespaced(body["apiVersion"], kind):
            message = f"{kind} `{body['metadata']['name']}` has no namespace"
            hint = "add `metadata: {namespace: …}`, or `namespace` in `spec` for all"
            yield Diagnostic("manifest-invalid", message, source.span("metadata"), hint=hint)
        yield from _by_reconcile(item, program, source)
        return
    if kind not in tenancy.KINDS.get(body["apiVersion"], ()):
        every = [each for kinds in tenancy.KINDS.values() for each in kinds]
        message = f"specs of teams may not have a {kind} (`{body['apiVersion']}`)"
        hint = f"a team may have {one_of(every)}; others are the platform's, without `metadata.team`"
        yield Diagnostic("manifest-not-allowed", message, source.span("kind"), hint=hint)
        return
    own = team_namespaces(program.team(item.team))
    if namespace not in own:
        message = f"namespace `{namespace}` is not one of team {item.team}"
        span, hint = source.span("metadata", "namespace"), f"use {one_of(own)}"
        yield Diagnostic("manifest-not-allowed", message, span, hint=hint)
        return
    for path, message, hint in tenancy.tenancy_problems(item, program, body, str(namespace)):
        span = source.span(*_indexed_path(body, path))
        yield Diagnostic("manifest-not-allowed", f"{kind} `{body['metadata']['name']}`: {message}", span, hint=hint)


def _by_reconcile(item: Item[KubernetesObjectsSpec], program: Program, source: ObjectSource) -> Iterator[Diagnostic]:
    kind = source.value["kind"]
    clusters = [name for name in item.clusters if program.cluster_spec(name).reconcile.mode == "builtin"]
    if clusters and kind not in _ALLOWED_KINDS:
        yield Diagnostic(
            "manifest-not-allowed",
            f"the account of `avactl reconcile` on cluster {clusters[0]} may not write a {kind}",
            source.span("kind"),
            hint="use another `reconcile.mode`, or apply it by other means",
        )


def _indexed_path(value: Any, path: tuple[str, ...]) -> tuple[str | int, ...]:
    """Return a path with indexes in place of the names of entries."""
    found: list[str | int] = []
    for step in path:
        if isinstance(value, list):
            names = [each.get("name") if isinstance(each, dict) else None for each in value]
            index = names.index(step) if step in names else 0
            value = value[index] if value else None
            found.append(index)
        else:
            value = value.get(step) if isinstance(value, dict) else None
            found.append(step)
    return tuple(found)
