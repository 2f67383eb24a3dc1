"""Checks of workloads on spot machines, which the provider takes back at short notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.diagnostics import Diagnostic, Note
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.workload import GpuCompute
from avactl.spec.platform.node_pool import NodePoolSpec
from avactl.spec.schema.values import duration_seconds


def spot_problems(item: Item, program: Program, use: str, computes: Sequence[GpuCompute]) -> Iterator[Diagnostic]:
    """Yield a warning for `spot` without effect: no pod selects a pool, or no such pool has spot machines."""
    if use == "never" or program.lacks_machines:
        return
    steered = [compute for compute in computes if compute.gpus or compute.pool is not None]
    if steered and (use == "require" or any(_spot_pools(item, program, compute) for compute in steered)):
        return
    why = (
        f"no pool of cluster {item.cluster} that they fit has spot machines"
        if steered
        else "pods without GPUs select no pool"
    )
    yield Diagnostic(
        "without-effect",
        f"spec.spot: `{use}` has no effect: {why}",
        item.span("spec", "spot"),
        severity="warning",
        hint="remove the key, or add `capacity: spot` to a NodePool"
        if steered
        else "remove the key, or name a pool: `pool: …`",
    )


def notice_problem(
    item: Item, program: Program, use: str, grace: int | None, path: tuple[str, ...], compute: GpuCompute
) -> Iterator[Diagnostic]:
    """Yield a warning for pods that need longer to end, in seconds, than the notice of their spot machines."""
    if use == "never" or grace is None:
        return
    for pool in _spot_pools(item, program, compute):
        if grace > duration_seconds(pool.spec.reclaim_notice):
            yield Diagnostic(
                "spot-notice",
                f"the pods have {grace}s to end, and machines of pool {pool.name} {pool.spec.reclaim_notice}",
                item.span(*path),
                severity="warning",
                hint="what takes longer is lost: shorten it, or correct `reclaimNotice` of the pool",
                notes=(Note(pool.span("spec", "capacity"), "spot machines"),),
            )
            return


def _spot_pools(item: Item, program: Program, compute: GpuCompute) -> list[Item[NodePoolSpec]]:
    """Return the spot pools where pods may run."""
    model = gpu_model(program, item.cluster, compute)
    if model is None and compute.pool is None:
        return []
    found = program.candidate_pools(item.cluster, model, compute.pool, compute.tolerates)
    return [pool for pool in found if pool.spec.is_spot]
