"""Lowering of Quota: ResourceQuota and LimitRange in the team's namespaces, and its leaf of the quota tree."""

from __future__ import annotations

from avactl.kinds.lowering import k8s
from avactl.kinds.lowering.pods import device_class
from avactl.kinds.lowering.quota_leaf import leaf
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program
from avactl.kinds.quota.limits import gpu_limits
from avactl.kinds.team.names import namespaces
from avactl.quantity import quantity

DEFAULT_CPU = "100m"
DEFAULT_MEMORY = "256Mi"
"""Requests of a container that sets none. There are no default limits: one below a container's own request would
make the pod invalid."""


def lower(item: Item, program: Program) -> list[Manifest]:
    """Return the objects of one quota.

    Kubernetes counts per namespace, so each namespace of the team gets the full limit. For a team with several
    namespaces the limit is exact only with avactl's scheduler, which counts the whole team by the quota tree. The same
    applies to GPU models that share an extended resource (`nvidia.com/gpu`): the API server counts them together.
    """
    hard, limits = _hard(item, program), _limit_range(item)
    result = [_leaf(item, program)]
    for namespace in namespaces(program.get("Team", str(item.team))):
        result.append(
            k8s.manifest(
                item, item.cluster, "v1", "ResourceQuota", item.name, namespace=namespace, spec={"hard": dict(hard)}
            )
        )
        result.append(
            k8s.manifest(
                item, item.cluster, "v1", "LimitRange", item.name, namespace=namespace, spec={"limits": [dict(limits)]}
            )
        )
    return result


def _hard(item: Item, program: Program) -> dict[str, str]:
    """Return the hard limits of the ResourceQuota. They limit requests, because requests reserve capacity for a pod.

    GPU models that the quota does not list have the limit 0. Sources of the names: extended resources support only
    `requests.`; DRA devices `CLASS.deviceclass.resource.k8s.io/devices`
    (https://kubernetes.io/docs/concepts/policy/resource-quotas/).
    """
    spec = item.spec
    hard = k8s.compact(
        **{
            "requests.cpu": spec.cpu,
            "requests.memory": spec.memory,
            "requests.storage": spec.storage,
            "pods": None if spec.pods is None else str(spec.pods),
        }
    )
    limits = gpu_limits(spec)
    counts: dict[str, int] = {}
    counted: set[tuple[str, str]] = set()
    for pool in program.pools(item.cluster):
        model = program.machine(pool).gpus.model
        if pool.spec.allocation == "dra":
            key = f"{device_class(model)}.deviceclass.resource.k8s.io/devices"
        else:
            key = f"requests.{pool.spec.resource_name}"
        if (key, model) not in counted:
            counted.add((key, model))
            counts[key] = counts.get(key, 0) + (limits[model].total if model in limits else 0)
    hard.update((key, str(count)) for key, count in counts.items())
    return hard


def _limit_range(item: Item) -> Body:
    """Return the LimitRange: default requests, so that pods pass the ResourceQuota, and the maximum per container."""
    spec = item.spec
    most = k8s.compact(cpu=spec.pod_max_cpu, memory=spec.pod_max_memory)
    request = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}
    for key, value in most.items():
        if quantity(value) < quantity(request[key]):
            request[key] = value
    return k8s.compact(type="Container", defaultRequest=request, max=most or None)


def _leaf(item: Item, program: Program) -> Manifest:
    spec, team = item.spec, str(item.team)
    return leaf(
        item, program, item.cluster, team, namespaces(program.get("Team", team)),
        [
            {"gpu": entry.gpu, "guaranteed": entry.guaranteed, "borrow": entry.borrow, "weight": entry.weight}
            for entry in spec.gpus
        ],
        shapes=[{"machines": shape.machines, "gpus": shape.gpus, "gpu": shape.gpu} for shape in spec.shapes],
        **k8s.compact(
            cpu=None if spec.cpu is None else float(quantity(spec.cpu)),
            memoryBytes=None if spec.memory is None else int(quantity(spec.memory)),
        ),
    )  # fmt: skip
