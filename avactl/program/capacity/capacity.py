"""GPU capacity: the GPUs that a spec requests, compared with the cluster's machines.

The checks use the specs alone, so an error means that a pod can never run. Free GPUs are known only to the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from avactl.contracts.names import CAPACITY, SPOT_ONLY
from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.model import GPU_MODEL
from avactl.diagnostics.suggest import closest_word, one_of
from avactl.hardware import library
from avactl.program import registry
from avactl.program.capacity import fit
from avactl.program.program import Item, Program, reserved_by
from avactl.program.workload import GpuCompute, WorkloadRole


def gpu_model(program: Program, cluster: str, compute: GpuCompute) -> str | None:
    """Return the GPU model of pods: the requested one, that of the pool, or the cluster's only one.

    None if no GPUs are requested, or if the model is ambiguous (`gpu_problems` reports that).
    """
    if not compute.gpus:
        return None
    if compute.gpu is not None:
        return compute.gpu
    if compute.pool is not None:
        pools = program.candidate_pools(cluster, None, compute.pool)
        return program.machine(pools[0]).gpu_model if pools else None
    models = program.gpu_models(cluster)
    return models[0] if len(models) == 1 else None


def running_roles(item: Item) -> Iterable[WorkloadRole]:
    """Return the pods that a spec requests while it runs; none if it is stopped or suspended, or runs no pods."""
    if registry.get_lifecycle(item.kind) is None:
        return ()
    workload = registry.get_kind(item.kind).workload
    return () if workload is None else workload.roles(item)


def gpu_demand(item: Item, program: Program, *, least: bool = False) -> dict[tuple[str, str], int | float]:
    """Return the GPUs that a spec requests, by cluster and GPU model; empty if none, or if it does not run.

    Sums all roles of a workload at their maximum size, or with `least` at the minimum (`min` of elastic jobs and
    autoscaled services). A shared GPU counts as its share.
    """
    sums: dict[tuple[str, str], Fraction] = {}
    for role in running_roles(item):
        model = gpu_model(program, item.cluster, role.compute)
        if model is not None:
            key = (item.cluster, model)
            gpus = Fraction(str(role.compute.gpus)) * (role.least if least else role.most)
            sums[key] = sums.get(key, Fraction(0)) + gpus
    return {key: int(value) if value.denominator == 1 else float(value) for key, value in sums.items()}


def role_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of all roles of a spec, each with the pods that must run together; see `gpu_problems`."""
    for role in running_roles(item):
        yield from gpu_problems(item, program, role.compute, role.path, role.least)


def gpu_problems(
    item: Item,
    program: Program,
    compute: GpuCompute,
    path: tuple[str | int, ...],
    replicas: int = 1,
    link: str | None = None,
) -> list[Diagnostic]:
    """Return the reasons why the pods of a role can never run on the cluster's machines; empty if they can.

    `path` is the path of `compute` in the document, e.g. `("spec", "workers")`. `replicas` is the number of pods that
    must run together: all workers of a gang, `min` of an elastic job or of an autoscaled service. `link` is the
    required link level; by default `compute.link` if `link_policy` is `required`.

    There is one diagnostic per cause. Capacity is computed for empty machines, so reported pods never fit; others may
    still have to wait.
    """
    if compute.pool is not None and program.pool(compute.pool).spec.cluster != item.cluster:
        return [_other_cluster(item, program, compute.pool, path)]
    if not compute.gpus and compute.pool is None and not program.declares_cpu_machines(item.cluster):
        return []
    if fit.unknown_capacity(program):
        return []
    if link is None and getattr(compute, "link_policy", None) == "required":
        link = getattr(compute, "link", None)
    # Many roles have equal requests, so the capacity for them is computed once.
    rdma = getattr(compute, "rdma", False)
    tolerates = tuple(compute.tolerates), tuple(getattr(compute, "compute", compute).tolerates)
    shape = (compute.gpus, compute.gpu, compute.pool, tolerates, compute.cpu, compute.memory)
    key = (item.cluster, *shape, str(rdma), link)
    if replicas <= program.memo(("room", key), lambda: _count_fitting_pods(item, program, compute, path, link)):
        return []
    problem = _model_problem(item, program, compute, path)
    if problem is None:
        ask = fit.Ask.of(compute, gpu_model(program, item.cluster, compute), link)
        found = fit.offers_for(program, item.cluster, compute, ask.model)
        problem = (
            fit.pod_problem(item, ask, found, path)
            or fit.gang_problem(item, ask, found, path, replicas)
            or fit.allocation_problem(item, ask, found, path)
            or fit.device_choice_problem(item, program, ask, found, path)
            or fit.link_warning(item, program, ask, found, path)
        )
    return [] if problem is None else [problem]


def _count_fitting_pods(item: Item, program: Program, compute: GpuCompute, path: fit.Path, link: str | None) -> int:
    """Return the number of such pods that the empty machines hold; -1 if another problem is reported for them."""
    if _model_problem(item, program, compute, path) is not None:
        return -1
    ask = fit.Ask.of(compute, gpu_model(program, item.cluster, compute), link)
    found = fit.offers_for(program, item.cluster, compute, ask.model)
    if fit.pod_problem(item, ask, found, path) or fit.allocation_problem(item, ask, found, path):
        return -1
    if fit.device_choice_problem(item, program, ask, found, path) or fit.link_warning(item, program, ask, found, path):
        return -1
    return fit.count_fitting_pods(ask, found)


def _other_cluster(item: Item, program: Program, name: str, path: tuple[str | int, ...]) -> Diagnostic:
    pool = program.pool(name)
    here = [other.name for other in program.pools(item.cluster)]
    return Diagnostic(
        "other-cluster",
        f"pool {name} is on cluster {pool.spec.cluster}, but {item} runs on cluster {item.cluster}",
        item.span(*path, "pool"),
        hint=f"pools of {item.cluster}: {one_of(here)}" if here else f"cluster {item.cluster} has no pools",
        notes=(Note(pool.span("spec", "cluster"), "the pool's cluster"),),
    )


def _model_problem(item: Item, program: Program, compute: GpuCompute, path: tuple[str | int, ...]) -> Diagnostic | None:
    """Return the diagnostic for a GPU model that is unknown or ambiguous."""
    if not compute.gpus:
        return None
    cluster = item.cluster
    models = program.gpu_models(cluster)
    if not models:
        hint = f"declare one: `kind: NodePool` with `cluster: {cluster}`"
        pools = "its node pools have CPUs only" if program.pools(cluster) else "no node pool is declared"
        message = f"cluster {cluster} has no GPUs: {pools}"
        return Diagnostic("gpu-not-in-cluster", message, item.span(*path, "gpus"), hint=hint)
    if compute.gpu is not None and compute.gpu not in models:
        return unknown_model(item, program, cluster, compute.gpu, (*path, "gpu"))
    if compute.pool is not None:
        pool = program.pool(compute.pool)
        model = program.machine(pool).gpu_model
        if model is None:
            others = [other.name for other in program.candidate_pools(cluster, compute.gpu, None)]
            others = [name for name in others if program.machine(program.pool(name)).gpu_count]
            return Diagnostic(
                "gpu-not-in-cluster",
                f"the machines of pool {pool.name} have no GPUs",
                item.span(*path, "gpus"),
                hint=f"write `gpus: 0`, or choose pool {one_of(others)}",
                notes=(Note(pool.span("spec", "machineType"), "machines with CPUs only"),),
            )
        if compute.gpu not in (None, model):
            others = [other.name for other in program.candidate_pools(cluster, compute.gpu, None)]
            return Diagnostic(
                "gpu-not-in-cluster",
                f"pool {pool.name} has {model}, not {compute.gpu}",
                item.span(*path, "gpu"),
                hint=f"write `gpu: {model}`, or choose pool {one_of(others)}",
                notes=(Note(pool.span("spec", "machineType"), f"machines with {model}"),),
            )
    elif compute.gpu is None and len(models) > 1:
        return Diagnostic(
            "ambiguous-reference",
            f"cluster {cluster} has several GPU models, and {item} does not select one",
            item.span(*path, "gpus"),
            hint=f"add `gpu: …`: {one_of(models)}",
        )
    return _taint_problem(item, program, compute, path)


def _taint_problem(item: Item, program: Program, compute: GpuCompute, path: tuple[str | int, ...]) -> Diagnostic | None:
    """A taint that no pool has, or taints that keep the pods off all pools with their GPUs."""
    known = program.taints(item.cluster)
    # Tolerations of pod settings have a check of their own.
    for index, key in enumerate(getattr(compute, "compute", compute).tolerates):
        if key not in known:
            near = closest_word(key, known)
            hint = f"did you mean `{near}`?" if near else f"taints of its pools: {one_of(known)}" if known else None
            return Diagnostic(
                "missing-reference",
                f"no pool of cluster {item.cluster} has the taint `{key}`",
                item.span(*path, "tolerates", index),
                hint=hint or "remove the key: its pools have no taints",
            )
    model = gpu_model(program, item.cluster, compute)
    if program.candidate_pools(item.cluster, model, compute.pool, compute.tolerates):
        return None
    spot = _spot_problem(item, program, compute, path, model)
    if compute.pool is not None or spot is not None:
        return spot
    first = next(pool for pool in program.candidate_pools(item.cluster, model, None) if not pool.spec.is_spot)
    keys = reserved_by(first, compute.tolerates)
    return Diagnostic(
        "taint-not-tolerated",
        f"all pools of cluster {item.cluster} with {model} have taints that {item} does not tolerate",
        item.span(*path, "gpus"),
        hint=f"add `tolerates: [{', '.join(keys)}]`, or name the pool: `pool: {first.name}`",
        notes=(Note(first.span("spec", "taints", key=True), f"taints of pool {first.name}"),),
    )


def _spot_problem(
    item: Item, program: Program, compute: GpuCompute, path: tuple[str | int, ...], model: str | None
) -> Diagnostic | None:
    """Return the diagnostic for pods that need spot machines and find none, or find only spot machines."""
    every = program.candidate_pools(item.cluster, model, compute.pool)
    spot = [pool for pool in every if pool.spec.is_spot]
    where = f"pool {compute.pool}" if compute.pool is not None else f"cluster {item.cluster}"
    if SPOT_ONLY in compute.tolerates and not spot:
        return Diagnostic(
            "spot-unavailable",
            f"{where} has no spot machines" + (f" with {model}" if model else ""),
            item.span("spec", "spot"),
            hint="write `spot: allow`, or add `capacity: spot` to a NodePool of such machines",
        )
    opted = CAPACITY in compute.tolerates or SPOT_ONLY in compute.tolerates
    if not spot or len(spot) < len(every) or opted:
        return None
    return Diagnostic(
        "taint-not-tolerated",
        f"{where} has only spot machines" + (f" with {model}" if model else "") + f", which {item} does not use",
        item.span(*path, "gpus" if compute.pool is None else "pool"),
        hint="write `spot: require`: with `allow`, the first `workers.min` workers of an elastic job stay off them"
        if getattr(item.spec, "spot", "never") == "allow"
        else "add `spot: allow` to `spec`: the pods must bear that the provider takes machines back",
        notes=(Note(spot[0].span("spec", "capacity"), f"capacity of pool {spot[0].name}"),),
    )


def unknown_model(item: Item, program: Program, cluster: str, model: str, path: tuple[str | int, ...]) -> Diagnostic:
    """Return the diagnostic for a GPU model that no pool of the cluster has."""
    known = program.gpu_models(cluster)
    # `v100`, `V100-32GB` and `NVIDIA-V100-SXM2` mean V100; H100 does not, however near the letters are.
    folded = model.lower().replace("-", "").replace(".", "")
    near = [name for name in known if name.lower() in (folded, *re.split(r"[-_.]", model.lower()))]
    if not near and folded not in {
        name.partition("-")[0] for name in library.shipped_names()
    }:  # A100 is no slip of A10
        near = [name for name in known if name.lower().startswith(folded) or folded.startswith(name.lower())]
    elsewhere = [other.name for other in program.clusters() if model in program.gpu_models(other.name)]
    meant = near[0] if len(near) == 1 else ""
    if meant:
        hint = f"did you mean `{meant}`?"
    else:
        hint = f"it has {one_of(known)}" if known else f"declare a pool: `kind: NodePool` with `cluster: {cluster}`"
        hint += f"; cluster {one_of(elsewhere)} has {model}" if elsewhere else ""
    message, about = f"cluster {cluster} has no GPU `{model}`", Reference(GPU_MODEL, model, meant)
    return Diagnostic("gpu-not-in-cluster", message, item.span(*path), hint=hint, reference=about)
