"""KubernetesObjects → the objects, with avactl's labels, and what admission requires and they leave open."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from avactl.contracts import names
from avactl.kinds.kubernetes_objects.sources import manifest_sources
from avactl.kinds.kubernetes_objects.spec import KubernetesObjectsSpec
from avactl.program import kubernetes_schema
from avactl.program.kubernetes_schema.templates import template_path, value_at
from avactl.program.lowering.gpu_request import (
    DEVICES_FIELD,
    VISIBLE_DEVICES,
    has_nvidia_gpus,
    hide_amd_devices,
    uses_amd_gpus,
)
from avactl.program.lowering.pods import member_annotation
from avactl.program.manifest import Body, Manifest, without_nulls
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, WrittenObject
from avactl.spec.schema.base import GROUP

_HOLD_DATA = ("PersistentVolumeClaim", "PersistentVolume", "Namespace", "CustomResourceDefinition")


def namespace_of(item: Item[KubernetesObjectsSpec], body: Body) -> str | None:
    """Return the namespace of a manifest: its own, the spec's, or the team's; None for objects of the cluster."""
    if kubernetes_schema.is_namespaced(body["apiVersion"], body["kind"]) is False:
        return None
    namespace: str | None = body["metadata"].get("namespace") or item.spec.namespace or item.namespace
    return namespace


def lower(item: Item[KubernetesObjectsSpec], program: Program) -> list[Manifest]:
    """Return the objects on each of the spec's clusters."""
    return [
        _build_manifest(item, program, cluster, source.value)
        for cluster in item.clusters
        for source in manifest_sources(item, program).found
    ]


def written_objects(item: Item[KubernetesObjectsSpec], program: Program) -> Iterator[WrittenObject]:
    """Yield the manifests of a spec that are Kubernetes objects."""
    for source in manifest_sources(item, program).found:
        match source.value:
            case {"apiVersion": str(), "kind": str(), "metadata": {"name": str()}}:
                namespace = namespace_of(item, source.value)
                yield WrittenObject(source.value, str(namespace or ""), source.doc, source.path)


def _build_manifest(item: Item[KubernetesObjectsSpec], program: Program, cluster: str, given: Body) -> Manifest:
    known = kubernetes_schema.find(given["apiVersion"], given["kind"]) is not None
    body = (without_nulls if known else copy.deepcopy)({key: value for key, value in given.items() if key != "status"})
    metadata = {key: value for key, value in body["metadata"].items() if key != "namespace"}
    namespace = namespace_of(item, given)
    if namespace is not None:
        metadata["namespace"] = namespace
    own = {names.MANAGED_BY: names.MANAGER, **({f"{GROUP}/team": item.team} if item.team else {})}
    declared = item.resource.metadata
    metadata["labels"] = {**declared.labels, **(metadata.get("labels") or {}), **own}
    notes = {**declared.annotations, **(metadata.get("annotations") or {})}
    if notes:
        metadata["annotations"] = notes
    body["metadata"] = metadata
    path = template_path(body["kind"])
    if item.team and path is not None:
        pod = value_at(body, path)
        _complete_pod(program, cluster, value_at(pod, ("spec",)))
        if of_member := member_annotation(item):
            of_pod = pod["metadata"] = dict(pod.get("metadata") or {})
            of_pod["annotations"] = {**(of_pod.get("annotations") or {}), **of_member}
    keeps = body["kind"] in _HOLD_DATA and item.spec.deletion_policy != "delete"
    return Manifest(item, cluster, body, holds_data=keeps)


def _complete_pod(program: Program, cluster: str, pod: Body) -> None:
    """Add the scheduler and the variable for GPUs, which the admission policies require of pods of teams."""
    scheduler = program.cluster_spec(cluster).daemons.scheduler
    if scheduler:
        pod.setdefault("schedulerName", names.SCHEDULER_NAME)
    gpus = {pool.spec.resource_name for pool in program.gpu_pools(cluster) if has_nvidia_gpus(program, pool)}
    kubelet_chooses = {pool.spec.resource_name for pool in program.gpu_pools(cluster) if pool.spec.kubelet_chooses}
    for container in (*(pod.get("containers") or ()), *(pod.get("initContainers") or ())):
        env = list(container.get("env") or ())
        limits = (container.get("resources") or {}).get("limits") or {}
        if any(each.get("name") == VISIBLE_DEVICES for each in env):
            continue
        if not gpus.intersection(limits):
            env.append({"name": VISIBLE_DEVICES, "value": "void"})
        elif scheduler and not kubelet_chooses.intersection(limits):
            env.append({"name": VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": DEVICES_FIELD}}})
        container["env"] = env
    if uses_amd_gpus(program, cluster):
        hide_amd_devices(pod)


def facts(item: Item[KubernetesObjectsSpec], program: Program) -> dict[str, Fact]:
    """Number of objects by kind."""
    counts: dict[str, int] = {}
    for source in manifest_sources(item, program).found:
        counts[source.value["kind"]] = counts.get(source.value["kind"], 0) + 1
    return {"objects": ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))}
