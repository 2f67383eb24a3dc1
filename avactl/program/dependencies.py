"""Objects that an object depends on: created before it, deleted after it."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.object_identity import ObjectKey
from avactl.program.autoscalers import scale_target
from avactl.program.manifest import Body, templates_of


def dependencies(body: Body) -> list[ObjectKey]:
    """Return an object's dependencies, each once.

    Only dependencies of the API server or of a pod's start, to keep edges few and applies parallel.
    """
    return list(dict.fromkeys(_dependencies(body)))


def _dependencies(body: Body) -> Iterator[ObjectKey]:
    metadata, kind = body["metadata"], body["kind"]
    namespace = metadata.get("namespace", "")
    if namespace:
        yield ObjectKey("", "Namespace", "", namespace)
    spec = body.get("spec") or {}
    if (reference := body.get("roleRef")) is not None:
        # RBAC escalation check: the API server reads the role that is bound.
        inside = namespace if reference["kind"] == "Role" else ""
        yield ObjectKey("rbac.authorization.k8s.io", reference["kind"], inside, reference["name"])
    elif kind in ("PersistentVolumeClaim", "PersistentVolume"):
        if name := spec.get("storageClassName"):
            yield ObjectKey("storage.k8s.io", "StorageClass", "", name)
        if name := spec.get("volumeName"):
            yield ObjectKey("", "PersistentVolume", "", name)
    elif (target := scale_target(body, namespace)) is not None:
        yield target
    elif kind == "ResourceClaimTemplate":
        for request in spec["spec"]["devices"].get("requests", ()):
            if name := request.get("exactly", {}).get("deviceClassName"):
                yield ObjectKey("resource.k8s.io", "DeviceClass", "", name)
    elif pods := [pod for _, template in templates_of(body) if isinstance(pod := template.get("spec"), dict)]:
        if name := spec.get("serviceName"):
            yield ObjectKey("", "Service", namespace, name)
        for pod in pods:
            yield from _pod_dependencies(pod, namespace)


def _pod_dependencies(pod: Body, namespace: str) -> Iterator[ObjectKey]:
    if name := pod.get("serviceAccountName"):
        yield ObjectKey("", "ServiceAccount", namespace, name)
    if name := pod.get("priorityClassName"):
        yield ObjectKey("scheduling.k8s.io", "PriorityClass", "", name)
    if name := pod.get("subdomain"):
        yield ObjectKey("", "Service", namespace, name)
    for claim in pod.get("resourceClaims", ()):
        if name := claim.get("resourceClaimTemplateName"):
            yield ObjectKey("resource.k8s.io", "ResourceClaimTemplate", namespace, name)
    for volume in pod.get("volumes", ()):
        if claim := volume.get("persistentVolumeClaim"):
            yield ObjectKey("", "PersistentVolumeClaim", namespace, claim["claimName"])
        for source in (volume, *volume.get("projected", {}).get("sources", ())):
            if config := source.get("configMap"):
                yield ObjectKey("", "ConfigMap", namespace, config["name"])
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        for name in _config_maps(container):
            yield ObjectKey("", "ConfigMap", namespace, name)


def _config_maps(container: Body) -> Iterator[str]:
    sources = [entry.get("configMapRef") for entry in container.get("envFrom", ())]
    sources += [entry.get("valueFrom", {}).get("configMapKeyRef") for entry in container.get("env", ())]
    for source in sources:
        if source:
            yield source["name"]
