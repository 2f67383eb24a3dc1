"""Hooks for the workloads of training jobs: roles, lifecycle, look in the graph, and the impact of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.kinds.program import Item
from avactl.kinds.registry import ObjectEffect
from avactl.kinds.training.local import LOCAL
from avactl.kinds.training.roles import bounds
from avactl.kinds.workload import Lifecycle, Role, Unpinned, WorkloadHooks


def roles(item: Item) -> Iterator[Role]:
    """Return the declared roles of a job; none while it is suspended."""
    spec = item.spec
    if spec.suspended:
        return
    least, most = bounds(spec)
    yield Role(("spec", "workers"), spec.workers, least, most)
    for key in ("servers", "launcher", "evaluator"):
        role = getattr(spec, key)
        if role is not None:
            yield Role(("spec", key), role, role.replicas, role.replicas)


def summary(item: Item) -> str:
    """Return framework, strategy and size."""
    spec = item.spec
    workers = spec.workers
    pods = f"{workers.min}–{workers.max}" if spec.strategy == "elastic" else f"{workers.replicas}"
    each = f"{pods} × {workers.gpus}" if workers.gpus else f"{pods} pods"
    servers = f" · {spec.servers.replicas} servers" if spec.servers else ""
    return f"{spec.framework} · {spec.strategy} · {each}{servers}"


def unpinned(item: Item) -> Iterator[Unpinned]:
    """Yield the datasets that are mounted without a version."""
    for index, mount in enumerate(item.spec.datasets):
        if mount.version is None:
            text = f"dataset {mount.name} has no version: a new version would restart the job"
            yield Unpinned(("spec", "datasets", index, "name"), text, "add `version: NAME`")


def impact(old: Item, new: Item, effects: Sequence[ObjectEffect]) -> str | None:
    """Return the effect on the run and its resume point; None if no pods are stopped."""
    if not any(effect.kind == "Job" and effect.starts_pods for effect in effects):
        return None
    if old.spec.suspended and new.spec.suspended:
        return "takes effect when resumed: it is suspended"
    if old.spec.suspended:
        return "starts"
    if new.spec.suspended:
        return "is stopped"
    before, after = old.spec.checkpoint, new.spec.checkpoint
    if before is None or after is None:
        return "pods restart from the beginning: no checkpoint is configured"
    if before.volume is not None and any(_replaces_checkpoints(effect) for effect in effects):
        return "pods restart from the beginning: the new checkpoint volume is empty"
    if before.path == after.path:
        return "pods restart and resume from the last checkpoint"
    return "pods restart from the beginning: earlier checkpoints are at another location"


def _replaces_checkpoints(effect: ObjectEffect) -> bool:
    """Return True if another volume replaces the one with the job's checkpoints."""
    claim = effect.kind == "PersistentVolumeClaim" and effect.name.endswith("-checkpoint")
    return claim and (effect.renamed or effect.loses_data)


WORKLOAD = WorkloadHooks(
    Lifecycle.JOB,
    "job",
    roles,
    checks_capacity=True,
    badge="train",
    summary=summary,
    timeout=lambda item: item.spec.timeout,
    has_checkpoint=lambda item: item.spec.checkpoint is not None,
    unpinned=unpinned,
    local=LOCAL,
)
