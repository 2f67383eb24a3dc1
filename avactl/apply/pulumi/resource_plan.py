"""Pulumi's view of a manifest: type, name, dependencies, and fields that force a replacement. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from avactl.program.manifest import Body, Manifest, templates_of
from avactl.program.program import Item

if TYPE_CHECKING:
    from avactl.compiler import Compilation

PROJECT = "avactl"
"""Pulumi project of all stacks."""

REPLACED_ON: dict[str, list[str]] = {
    "Job": [
        f"spec.{field}"
        for field in ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy", "managedBy")
    ],
    "PersistentVolume": ["spec.nodeAffinity", "spec.volumeMode"],
    "PersistentVolumeClaim": ["spec.dataSource", "spec.dataSourceRef", "spec.volumeMode"],
    "PriorityClass": ["value", "preemptionPolicy"],
    "ResourceClaimTemplate": ["spec"],
    "ComputeDomain": ["spec"],
    "StorageClass": ["reclaimPolicy", "volumeBindingMode"],
}
"""Immutable fields that the provider does not know: kind → property paths.

Source: the ValidateXUpdate functions of k8s.io/kubernetes/pkg/apis. The provider knows the rest (pod template of a
Job, claim templates of a StatefulSet, selectors, roleRef, names).
"""


def of_stack(compilation: Compilation, cluster: str, team: str | None = None) -> list[Manifest]:
    """Return the manifests of a stack in apply order: the platform's on a cluster, or a team's."""
    return [m for m in compilation.manifests if m.cluster == cluster and m.item.team == team]


class Key(NamedTuple):
    """Identity of an object in one cluster. Excludes the API version, which may change."""

    group: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, body: Body) -> Key:
        """Return the key of an object."""
        metadata = body["metadata"]
        group = body["apiVersion"].rpartition("/")[0]
        return cls(group, body["kind"], metadata.get("namespace", ""), metadata["name"])


def type_token(manifest: Manifest) -> str:
    """Return Pulumi's type: `kubernetes:apps/v1:Deployment`; for patches `kubernetes:core/v1:NodePatch`."""
    version: str = manifest.body["apiVersion"]
    module = version if "/" in version else f"core/{version}"
    return f"kubernetes:{module}:{manifest.kind}{'Patch' if manifest.patch else ''}"


def object_name(manifest: Manifest) -> str:
    """Return Pulumi's name of an object: its name in the cluster, independent of its spec."""
    return f"{manifest.namespace}/{manifest.name}" if manifest.namespace else manifest.name


def component_type(kind: str) -> str:
    """Return Pulumi's type of a kind's component."""
    return f"avactl:kinds:{kind}"


def component_name(item: Item) -> str:
    """Return Pulumi's name of a spec: `team/name`, or `name` for the platform."""
    return f"{item.team}/{item.spec_name}" if item.team else item.spec_name


def urn(stack: str, component: str, token: str, name: str) -> str:
    """Return the URN of an object below a component of this type; without `component`, of a top-level resource."""
    parents = f"{component}$" if component else ""
    return f"urn:pulumi:{stack}::{PROJECT}::{parents}{token}::{name}"


def manifest_urn(manifest: Manifest, stack: str) -> str:
    """Return the URN of an object in a stack."""
    return urn(stack, component_type(manifest.item.kind), type_token(manifest), object_name(manifest))


def manifest_parent(manifest: Manifest, stack: str) -> str:
    """Return the URN of the component of an object's spec in a stack."""
    return urn(stack, "", component_type(manifest.item.kind), component_name(manifest.item))


def needs(body: Body) -> Iterator[tuple[str, str, str]]:
    """Yield an object's dependencies as (kind, namespace, name): created before it, deleted after it.

    Only dependencies of the API server or of a pod's start, to keep edges few and applies parallel.
    """
    metadata, kind = body["metadata"], body["kind"]
    namespace = metadata.get("namespace", "")
    if namespace:
        yield ("Namespace", "", namespace)
    spec = body.get("spec") or {}
    if (reference := body.get("roleRef")) is not None:
        # RBAC escalation check: the API server reads the role that is bound.
        yield (reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"])
    elif kind in ("PersistentVolumeClaim", "PersistentVolume"):
        if name := spec.get("storageClassName"):
            yield ("StorageClass", "", name)
        if name := spec.get("volumeName"):
            yield ("PersistentVolume", "", name)
    elif kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        target = spec["scaleTargetRef"]
        yield (target["kind"], namespace, target["name"])
    elif kind == "ResourceClaimTemplate":
        for request in spec["spec"]["devices"].get("requests", ()):
            if name := request.get("exactly", {}).get("deviceClassName"):
                yield ("DeviceClass", "", name)
    elif pods := [pod for _, template in templates_of(body) if isinstance(pod := template.get("spec"), dict)]:
        if name := spec.get("serviceName"):
            yield ("Service", namespace, name)
        for found, name in dict.fromkeys(need for pod in pods for need in _pod_needs(pod)):
            yield (found, "" if found == "PriorityClass" else namespace, name)


def _pod_needs(pod: Body) -> Iterator[tuple[str, str]]:
    if name := pod.get("serviceAccountName"):
        yield ("ServiceAccount", name)
    if name := pod.get("priorityClassName"):
        yield ("PriorityClass", name)
    if name := pod.get("subdomain"):
        yield ("Service", name)
    for claim in pod.get("resourceClaims", ()):
        if name := claim.get("resourceClaimTemplateName"):
            yield ("ResourceClaimTemplate", name)
    for volume in pod.get("volumes", ()):
        if claim := volume.get("persistentVolumeClaim"):
            yield ("PersistentVolumeClaim", claim["claimName"])
        for source in (volume, *volume.get("projected", {}).get("sources", ())):
            if config := source.get("configMap"):
                yield ("ConfigMap", config["name"])
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        for name in _env_maps(container):
            yield ("ConfigMap", name)


def _env_maps(container: Body) -> Iterator[str]:
    sources: list[Any] = [entry.get("configMapRef") for entry in container.get("envFrom", ())]
    sources += [entry.get("valueFrom", {}).get("configMapKeyRef") for entry in container.get("env", ())]
    for source in sources:
        if source:
            yield source["name"]
