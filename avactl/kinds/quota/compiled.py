"""Requests of pods as they are compiled: with patches, and of manifests that a spec has as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from avactl.kinds.quota.amounts import Amounts, Ask, Milli, parse_milli
from avactl.kinds.quota.lower import DEFAULT_CPU, DEFAULT_MEMORY
from avactl.program import registry
from avactl.program.manifest import Body, Manifest, groups_at, templates_of
from avactl.program.program import Item, Program
from avactl.program.refused import RefusedError
from avactl.program.workload import Lifecycle
from avactl.spec.schema.base import Patch

_RESOURCE_KEYS = ("cpu", "memory")
_DEFAULT_REQUESTS = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}
_PERMANENT_KINDS = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "LeaderWorkerSet", "DisaggregatedSet")
WrittenAsk = tuple[str, int, tuple[str | int, ...], str, int, Amounts, Amounts]
"""Demand of a manifest: cluster, index among the spec's manifests, path of its requests, lifecycle, pods, and the
amounts of each pod and of its largest container."""


# -- patches -----------------------------------------------------------------------------------------------------------


def with_patches(item: Item, program: Program, asks: list[Ask], most: list[int]) -> list[Ask]:
    """Return the demand of a spec's roles after its patches. `most` has the maximum number of pods of each role."""
    numbers = [index for index, patch in enumerate(item.resource.patches) if _changes_requests(patch)]
    if not numbers or program.with_patches is None:
        return asks
    try:
        before = registry.get_kind(item.kind).lower(item, program)
        bodies = [manifest.body for manifest in before]
        after = program.with_patches(item, program, before)
    except RefusedError:
        return asks  # the lower pass reports it
    except Exception:
        return asks  # the spec has an error of its own, which is reported; a defect is reported by the lower pass
    found = list(asks)
    for old, manifest in zip(bodies, after, strict=True):
        _count(item, numbers, old, manifest, found, most)
    return found


def _changes_requests(patch: Patch) -> bool:
    if patch.merge is not None:
        text = str(patch.merge)
        return "'resources'" in text or "ontainers'" in text
    return any(
        "/containers" in each.path or "/initContainers" in each.path or isinstance(each.value, dict)
        for each in patch.json_patch or ()
    )


def _count(item: Item, numbers: list[int], old: Body, manifest: Manifest, asks: list[Ask], most: list[int]) -> None:
    """Add to the demand what patches change in one object."""
    becomes = dict(templates_of(manifest.body))
    for path, was in templates_of(old):
        if path in becomes:
            had, has = requests_of(was.get("spec") or {}), requests_of(becomes[path].get("spec") or {})
            _count_pods(item, numbers, had, has, _template_pods(manifest.body, path), asks, most)


def _count_pods(
    item: Item,
    numbers: list[int],
    had: dict[str, Milli],
    has: dict[str, Milli],
    pods: int,
    asks: list[Ask],
    most: list[int],
) -> None:
    for key in _RESOURCE_KEYS:
        if had[key] == has[key]:
            continue
        path = next((at for number in numbers if (at := _request_path(item, number, key))), ("patches", numbers[0]))
        index = _matching_role(asks, most, pods, key, had[key])
        if index is None:
            asks.append((path, pods, ((key, "", has[key] - had[key]),)))
            continue
        role, count, amounts = asks[index]
        own = next(each for name, _, each in amounts if name == key)
        asks[index] = (role, count, tuple(each for each in amounts if each[0] != key))
        asks.append((path, count, ((key, "", own + has[key] - had[key]),)))


def _matching_role(asks: list[Ask], most: list[int], pods: int, key: str, amount: Milli) -> int | None:
    """Return the index of the role whose pods an object has."""
    found = [
        index
        for index, count in enumerate(most)
        if (len(most) == 1 or count == pods) and any(name == key for name, _, _ in asks[index][2])
    ]
    equal = [index for index in found if (key, "", amount) in asks[index][2]]
    return next(iter((*equal, *found)), None)


def _request_path(item: Item, number: int, key: str) -> tuple[str | int, ...]:
    """Return the path of the requests in a patch that change a resource; empty if there are none."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [(("patches", number), item.doc.get("patches", number))]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            if path[-1] in ("requests", "limits") and key in value:
                return path
            if str(value.get("path", "")).endswith(f"/{key}"):
                return path
            pending += [((*path, name), each) for name, each in value.items()]
        elif isinstance(value, list):
            pending += [((*path, index), each) for index, each in enumerate(value)]
    return ()


# -- manifests ---------------------------------------------------------------------------------------------------------


def written_asks(item: Item, program: Program) -> list[WrittenAsk]:
    """Return the demand of the pods of a spec's manifests, on each of its clusters."""
    written = list(registry.get_kind(item.kind).written(item, program))
    bodies = {cluster: [each.body for each in written] for cluster in item.clusters}
    if item.resource.patches and program.with_patches is not None:
        try:
            made = program.with_patches(item, program, registry.get_kind(item.kind).lower(item, program))
        except RefusedError:
            made = []  # the lower pass reports it
        for cluster in item.clusters:
            patched = [manifest.body for manifest in made if manifest.cluster == cluster]
            if len(patched) == len(written):
                bodies[cluster] = patched
    return [ask for cluster in bodies for ask in _written_asks(program, cluster, bodies[cluster])]


def _written_asks(program: Program, cluster: str, bodies: list[Body]) -> Iterator[WrittenAsk]:
    templates = (
        (index, body, *each)
        for index, body in enumerate(bodies)
        for each in ([((), body)] if body["kind"] == "Pod" else templates_of(body))
    )
    for index, body, path, template in templates:
        pod = template.get("spec")
        containers = pod.get("containers") if isinstance(pod, dict) else None
        spec = body.get("spec")
        if not isinstance(pod, dict) or not isinstance(containers, list) or not containers:
            continue
        if isinstance(spec, dict) and spec.get("suspend") is True and body["kind"] == "Job":
            continue
        try:
            requests, gpus = requests_of(pod), _pod_gpus(program, cluster, pod)
            largest = max(range(len(containers)), key=lambda at: _container_request(containers[at], "cpu"))
            each = tuple(
                (key, "", max(_container_limit(container, key) for container in containers)) for key in _RESOURCE_KEYS
            )
        except (ValueError, TypeError, AttributeError):
            continue  # not a pod of Kubernetes, which the kind's own check reports
        amounts = (*gpus, *((key, "", requests[key]) for key in _RESOURCE_KEYS))
        lifecycle = Lifecycle.SERVICE if _is_permanent(body, pod) else Lifecycle.JOB
        least = _pods_together(body, path, template, lifecycle)
        if least > 0:
            place: tuple[str | int, ...] = (*path, "spec", "containers", largest, "resources", "requests")
            yield cluster, index, place, lifecycle.value, least, amounts, each


def _is_permanent(body: Body, pod: Body) -> bool:
    if body["kind"] == "Pod":
        return bool(pod.get("restartPolicy", "Always") == "Always")
    return str(body["kind"]) in _PERMANENT_KINDS


def _pods_together(body: Body, path: tuple[str, ...], template: Body, lifecycle: Lifecycle) -> int:
    """Return the pods that run together: all of a service, those of a job's gang."""
    if lifecycle is Lifecycle.SERVICE:
        return _template_pods(body, path)
    metadata = template.get("metadata") or {}
    given = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}.get(GANG_SIZE.name, "1")
    return min(int(given), 1_000_000) if str(given).isdecimal() else 1


def _pod_gpus(program: Program, cluster: str, pod: Body) -> Amounts:
    """Return the GPUs of a pod by model; none if the model is not known before the pod is placed."""
    pools = program.gpu_pools(cluster)
    selected = pod.get("nodeSelector") or {}
    models = {
        pool.spec.resource_name: {
            program.machine(each).gpu_model
            for each in pools
            if each.spec.resource_name == pool.spec.resource_name
            and selected.get(names.POOL_LABEL, each.name) == each.name
            and selected.get(names.GPU_LABEL, program.machine(each).gpu_model) == program.machine(each).gpu_model
        }
        for pool in pools
    }
    found = []
    for resource, model in models.items():
        count = sum(_container_devices(each, resource) for each in pod.get("containers") or ())
        if count and len(model) == 1:
            found.append(("gpus", str(*model), count))
    return tuple(found)


# -- pods --------------------------------------------------------------------------------------------------------------


def requests_of(pod: Body) -> dict[str, Milli]:
    """Return the CPU and memory of a pod. Raises ValueError, TypeError and AttributeError for what is no pod.

    Init containers run one after the other, those that restart beside all that follow.
    Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    found = {}
    for key in _RESOURCE_KEYS:
        beside = before = 0
        for each in pod.get("initContainers") or ():
            if each.get("restartPolicy") == "Always":
                beside += _container_request(each, key)
            else:
                before = max(before, beside + _container_request(each, key))
        found[key] = max(before, beside + sum(_container_request(each, key) for each in pod.get("containers") or ()))
    return found


def _container_request(container: Body, key: str) -> Milli:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get(key, (resources.get("limits") or {}).get(key, _DEFAULT_REQUESTS[key]))
    return parse_milli(value)


def _container_limit(container: Body, key: str) -> Milli:
    limits = (container.get("resources") or {}).get("limits") or {}
    return max(_container_request(container, key), parse_milli(limits.get(key, 0)))


def _container_devices(container: Body, resource: str) -> Milli:
    return parse_milli(((container.get("resources") or {}).get("limits") or {}).get(resource, 0))


def _template_pods(body: Body, path: tuple[str, ...] = ()) -> int:
    """Return the number of pods of an object's template at a path that run together."""
    spec = groups_at(body, path)
    if body["kind"] == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    count = spec.get("parallelism", spec.get("replicas", 1))
    if path[-1:] == ("workerTemplate",):
        groups = spec["leaderWorkerTemplate"]
        size = groups.get("size", 1)
        # Without a template of its own, the leader is made from that of the workers.
        others = size - 1 if "leaderTemplate" in groups else size
        count = count * others if isinstance(count, int) and isinstance(size, int) else 0
    return count if isinstance(count, int) and 0 <= count <= 1_000_000 else 1
