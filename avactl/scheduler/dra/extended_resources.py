"""Extended resources with a DeviceClass: the ResourceClaim that the scheduler creates for a pod that requests them.

A node that offers the resource through a device plugin needs no claim. On all others, the devices of the class are
allocated to one claim per pod, and the pod's status maps its requests to containers.
Source: kube-scheduler's plugin DynamicResources, extendeddynamicresources.go; KEP-5004.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from avactl.contracts.names import DEVICE_CLASS_PREFIX, EXTENDED_CLAIM
from avactl.scheduler.dra.resource_claim import MAX_DEVICES, LiveDeviceClass, ResourceClaim
from avactl.scheduler.objects.node_rules import UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.pod_requirements import ExtendedRequest

_MAX_NAME = 253
_SUFFIX = "-extended-resources-"


class ClassMapping(NamedTuple):
    """Requests of the claim of a pod's extended resources, and the container of each."""

    requests: tuple[dict[str, Any], ...]
    mappings: tuple[dict[str, str], ...]
    """`requestMappings` of the pod's status."""


def classes_by_resource(classes: Mapping[str, LiveDeviceClass]) -> dict[str, str]:
    """Return the DeviceClass of each extended resource. Of several for one resource, the newest counts."""
    found: dict[str, str] = {}
    # Lower names come last among classes of one second, and count.
    for name in sorted(sorted(classes, reverse=True), key=lambda name: classes[name].created):
        found[DEVICE_CLASS_PREFIX + name] = name
        if classes[name].resource:
            found[classes[name].resource] = name
    return found


def refuse_many(containers: Sequence[ExtendedRequest], resources: Iterable[str]) -> None:
    """Raise UnsupportedError if a claim would have more devices than one may have.

    Of many containers that share many devices, the mapping would be large: it is not made.
    """
    least = 0
    for resource in resources:
        amounts = [(each.short_lived, each.amounts.get(resource, 0)) for each in containers]
        least += max(sum(amount for short, amount in amounts if not short), *(amount for _, amount in amounts), 0)
    if least > MAX_DEVICES:
        text = f"its ResourceClaim requests {least} devices; the limit is {MAX_DEVICES}: use several claims"
        raise UnsupportedError(text)


def map_requests(containers: Sequence[ExtendedRequest], classes: Mapping[str, str]) -> ClassMapping:
    """Return the requests and mappings of the containers, for resources by their class.

    Containers that run as long as the pod have devices of their own. Init containers run before those that follow them,
    so they use the devices of these, and the largest of what they lack is requested once for all of them.
    """
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, str]] = []
    for resource, device_class in sorted(classes.items()):
        asking = [each for each in containers if each.amounts.get(resource)]
        lasting = [each for each in asking if not each.short_lived]
        extra: ExtendedRequest | None = None
        most, shared = 0, list[tuple[ExtendedRequest, str]]()
        for each in (each for each in asking if each.short_lived):
            lacking = each.amounts[resource]
            for later in lasting:
                if later.position >= each.position and lacking > 0:
                    shared.append((each, later.request_name(resource)))
                    lacking -= later.amounts[resource]
            if lacking > 0:
                shared.append((each, ""))
                if lacking > most:
                    most, extra = lacking, each
        name_of_extra = extra.request_name(resource) if extra is not None else ""
        wanted = [(each.request_name(resource), each.amounts[resource]) for each in lasting]
        if extra is not None:
            wanted.append((name_of_extra, most))
        requests += [_device_request(name, device_class, count) for name, count in wanted]
        users = [*((each, each.request_name(resource)) for each in lasting), *shared]
        mappings += [
            {"containerName": each.container, "resourceName": resource, "requestName": name or name_of_extra}
            for each, name in users
        ]
    return ClassMapping(tuple(sorted(requests, key=lambda request: str(request["name"]))), tuple(mappings))


def _device_request(name: str, device_class: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}


def resources_of(containers: Sequence[ExtendedRequest], requests: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the extended resources that the requests of a pod's claim stand for."""
    by_name = {each.request_name(resource): resource for each in containers for resource in each.amounts}
    return tuple(sorted({by_name[request["name"]] for request in requests if request["name"] in by_name}))


def lacking_on(resources: Collection[str], allocatable: Mapping[str, int]) -> tuple[str, ...]:
    """Return those of the resources that no device plugin offers on a node, so that they need a claim there."""
    return tuple(sorted(name for name in resources if not allocatable.get(name)))


def new_claim(pod: PodInfo, requests: Sequence[dict[str, Any]]) -> ResourceClaim:
    """Return a claim for a pod that the API server does not know yet: without a version, with a UID of its own."""
    name = f"{pod.name[: _MAX_NAME - len(_SUFFIX) - 8].rstrip('.-')}{_SUFFIX}{secrets.token_hex(4)}"
    body = claim_body(pod, name, requests)
    return ResourceClaim({**body, "metadata": {**body["metadata"], "uid": f"new/{name}", "resourceVersion": ""}})


def claim_body(pod: PodInfo, name: str, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the claim as it is created: annotated, and owned by its pod, with which it is removed."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": pod.namespace,
            "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": list(requests)}},
    }


def pod_status(claim: str, mappings: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the status that tells the kubelet which requests of the claim are for which container."""
    return {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": list(mappings)}}
