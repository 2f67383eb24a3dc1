"""Lowering of Quota: ResourceQuota and LimitRange in the team's namespaces, and its leaf of the quota tree."""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.contracts.scheduling import GpuLimit, MachineShape, TeamLeaf
from avactl.kinds.quota.limits import gpu_limits
from avactl.kinds.team.names import team_namespaces
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import device_class
from avactl.program.lowering.quota_leaf import build_leaf
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.quota import QuotaSpec

DEFAULT_CPU = "100m"
DEFAULT_MEMORY = "256Mi"
"""Requests of a container that sets none. There are no default limits: one below a container's own request would
make the pod invalid."""


def lower(item: Item[QuotaSpec], program: Program) -> list[Manifest]:
    """Return the objects of one quota.

    The LimitRange is the same in each namespace. Kubernetes counts per namespace, so each namespace of the team gets
    the full ResourceQuota.
    """
    hard, limits = _hard_limits(item, program), _limit_range(item)
    result = [_build_leaf(item, program)]
    for namespace in team_namespaces(program.team(str(item.team))):
        for kind, spec in (("ResourceQuota", {"hard": dict(hard)}), ("LimitRange", {"limits": [dict(limits)]})):
            if kind == "LimitRange" or hard:
                result.append(
                    k8s.build_manifest(item, item.cluster, "v1", kind, item.name, namespace=namespace, spec=spec)
                )
    return result


def _hard_limits(item: Item[QuotaSpec], program: Program) -> dict[str, str]:
    """Return the hard limits of the ResourceQuota.

    A ResourceQuota refuses pods that should wait. So with avactl's scheduler, which queues for CPU, memory and GPUs,
    and by which all pods of teams are placed, it limits only storage and the number of pods.
    """
    spec = item.spec
    hard = k8s.drop_none(
        **{"requests.storage": spec.storage, "pods": None if spec.pods is None else str(spec.pods)},
    )
    if not program.cluster_spec(item.cluster).daemons.scheduler:
        hard.update(
            k8s.drop_none(**{"requests.cpu": spec.cpu, "requests.memory": spec.memory}), **_gpu_limits(item, program)
        )
    return hard


def _gpu_limits(item: Item[QuotaSpec], program: Program) -> dict[str, str]:
    """Return the limits on GPUs, for clusters without avactl's scheduler.

    They limit requests: extended resources support only `requests.`, and DRA devices
    `CLASS.deviceclass.resource.k8s.io/devices` (https://kubernetes.io/docs/concepts/policy/resource-quotas/). The API
    server counts models that share an extended resource together. Models that the quota does not list have the limit 0.
    """
    limits = gpu_limits(item.spec)
    counts: dict[str, int] = {}
    counted: set[tuple[str, str]] = set()
    for pool in program.gpu_pools(item.cluster):
        model = str(program.machine(pool).gpu_model)
        if pool.spec.allocation == "dra":
            key = f"{device_class(model)}.deviceclass.resource.k8s.io/devices"
        else:
            key = f"requests.{pool.spec.resource_name}"
        if (key, model) not in counted:
            counted.add((key, model))
            counts[key] = counts.get(key, 0) + (limits[model].total if model in limits else 0)
    return {key: str(count) for key, count in counts.items()}


def _limit_range(item: Item[QuotaSpec]) -> Body:
    """Return the LimitRange: default requests, so that no pod is free of the quota, and the maximum per container."""
    spec = item.spec
    most = k8s.drop_none(cpu=spec.pod_max_cpu, memory=spec.pod_max_memory)
    request = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}
    for key, value in most.items():
        if parse_quantity(value) < parse_quantity(request[key]):
            request[key] = value
    return k8s.drop_none(type="Container", defaultRequest=request, max=most or None)


def _build_leaf(item: Item[QuotaSpec], program: Program) -> Manifest:
    spec, team = item.spec, str(item.team)
    document = TeamLeaf(
        version=1,
        team=team,
        namespaces=tuple(team_namespaces(program.team(team))),
        gpus=tuple(
            GpuLimit(
                gpu=entry.gpu,
                guaranteed=entry.guaranteed,
                borrow=entry.borrow,
                weight=entry.weight,
                **({} if entry.per_member is None else {"per_member": entry.per_member}),
            )
            for entry in spec.gpus
        ),
        shapes=tuple(MachineShape(machines=shape.machines, gpus=shape.gpus, gpu=shape.gpu) for shape in spec.shapes),
        cpu=None if spec.cpu is None else float(parse_quantity(spec.cpu)),
        memory_bytes=None if spec.memory is None else int(parse_quantity(spec.memory)),
    )
    return build_leaf(item, program, item.cluster, document)
