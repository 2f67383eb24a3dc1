"""Capacity: which GPUs a spec asks for, and whether the cluster's machines can ever give them.

What is checked here needs only the specs, so an error means *never*, not *not now*; whether GPUs are free at the
moment only the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from avactl.diagnostics import Diagnostic
from avactl.kinds.program import Item, Program


class GpuCompute(Protocol):
    """What asks for GPUs: a `Compute`, or the spec of a Workspace."""

    @property
    def gpus(self) -> int | float: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def pool(self) -> str | None: ...


class Role(NamedTuple):
    """Pods of one make in a spec."""

    path: tuple[str, ...]
    """Where the role's compute stands in the document."""
    compute: Any
    least: int
    """Pods that must run at the same time for the spec to do its work."""
    most: int
    """Pods that it may grow to."""


def gpu_model(program: Program, cluster: str, compute: GpuCompute) -> str | None:
    """The GPU model that pods get: the one asked for, that of the pool, or the only one of the cluster.

    None where no GPUs are asked for, or where it cannot be told (`gpu_problems` has the diagnostic).
    """
    if not compute.gpus:
        return None
    if compute.gpu is not None:
        return compute.gpu
    if compute.pool is not None:
        pools = program.candidate_pools(cluster, None, compute.pool)
        return str(program.machine(pools[0]).gpus.model) if pools else None
    models = program.gpu_models(cluster)
    return models[0] if len(models) == 1 else None


def roles(item: Item) -> Iterator[Role]:
    """The pods that a spec asks for when it runs; none of a spec that is stopped or suspended."""
    spec = item.spec
    if item.kind == "TrainingJob" and not spec.suspended:
        workers = spec.workers
        elastic = spec.strategy == "elastic"
        least = (workers.min if elastic else None) or workers.replicas
        most = (workers.max if elastic else None) or workers.replicas
        yield Role(("spec", "workers"), workers, least, max(least, most))
        for key in ("servers", "launcher", "evaluator"):
            role = getattr(spec, key)
            if role is not None:
                yield Role(("spec", key), role, role.replicas, role.replicas)
    elif item.kind == "ServingDeployment":
        replicas = spec.replicas
        least, most = (replicas, replicas) if isinstance(replicas, int) else (replicas.min, replicas.max)
        yield Role(("spec", "resources"), spec.resources, least, max(least, most))
    elif item.kind == "Workspace" and spec.running:
        yield Role(("spec",), spec, 1, 1)


def demand(item: Item, program: Program, *, least: bool = False) -> dict[tuple[str, str], int | float]:
    """GPUs that a spec asks for, by cluster and GPU model; empty where it asks for none or does not run.

    Training jobs (all roles), services and workspaces; at their largest, or with `least` at the smallest size with
    which they work (`min` of elastic jobs and autoscaled services). A shared GPU of a workspace counts as its share.
    """
    sums: dict[tuple[str, str], Fraction] = {}
    for role in roles(item):
        model = gpu_model(program, item.cluster, role.compute)
        if model is not None:
            key = (item.cluster, model)
            gpus = Fraction(str(role.compute.gpus)) * (role.least if least else role.most)
            sums[key] = sums.get(key, Fraction(0)) + gpus
    return {key: int(value) if value.denominator == 1 else float(value) for key, value in sums.items()}


def gpu_problems(
    item: Item,
    program: Program,
    compute: GpuCompute,
    path: tuple[str | int, ...],
    replicas: int = 1,
    link: str | None = None,
) -> list[Diagnostic]:
    """Why the pods of one role can never run on the machines of the item's cluster; empty where they can.

    `path` is where `compute` stands in the document, e.g. `("spec", "workers")`. `replicas` is the number of pods
    that must run at the same time: all workers of a gang, `min` of an elastic job or of an autoscaled service.
    `link` is the link level that must be had; by default `compute.link` where `link_policy` is `required`.
    """
    return []
