"""Hooks for the workloads of training jobs: roles, lifecycle, look in the graph, facts, and the impact of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.kinds.training.local import LOCAL
from avactl.kinds.training.roles import (
    declared_roles,
    has_master,
    master_compute,
    whole_compute,
    worker_bounds,
    workers_of,
)
from avactl.kinds.training.spec import TrainingJobSpec, WorkerGroup, Workers
from avactl.program import dataset_access
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, ObjectEffect
from avactl.program.workload import Lifecycle, Unpinned, WorkloadHooks, WorkloadRole
from avactl.spec.repository.revisions import is_commit
from avactl.spec.schema.compute import DatasetMount


def roles(item: Item[TrainingJobSpec]) -> Iterator[WorkloadRole]:
    """Return the declared roles of a job; none while it is suspended."""
    spec = item.spec
    if spec.suspended:
        return
    least, most = worker_bounds(spec)
    for path, role in declared_roles(spec):
        elastic = path == ("spec", "workers")
        fewest, all_of = (least, most) if elastic else (role.replicas, role.replicas)
        yield WorkloadRole(path, whole_compute(spec, role), fewest, all_of)
    if has_master(spec):
        yield WorkloadRole(("spec", "master"), master_compute(spec), 1, 1)


def summary(item: Item[TrainingJobSpec]) -> str:
    """Return framework, strategy and size."""
    spec = item.spec
    workers: list[Workers | WorkerGroup] = [spec.workers, *spec.worker_groups]
    each = []
    for group in workers:
        if isinstance(group, Workers) and spec.strategy == "elastic":
            pods = f"{group.min}–{group.max}"
        else:
            pods = f"{group.replicas}"
        each.append(f"{pods} × {group.gpus}" if group.gpus else f"{pods} pod{'' if pods == '1' else 's'}")
    count = sum(group.replicas for group in (spec.servers, *spec.server_groups) if group is not None)
    servers = f" · {count} servers" if count else ""
    return f"{spec.framework} · {spec.strategy} · {' + '.join(each)}{servers}"


def facts(item: Item[TrainingJobSpec], program: Program) -> dict[str, Fact]:
    """Parallelism, resources and data of the job."""
    spec = item.spec
    least, most = worker_bounds(spec)
    workers: Fact = workers_of(spec) if least == most else f"{least}–{most}"
    found: dict[str, Fact] = {"strategy": spec.strategy, "framework": spec.framework, "workers": workers}
    gpus: dict[str, tuple[float, float]] = {}
    for path, compute in declared_roles(spec):
        fewest, all_of = (least, most) if path == ("spec", "workers") else (compute.replicas, compute.replicas)
        model = gpu_model(program, item.cluster, compute)
        if model is not None:
            low, high = gpus.get(model, (0, 0))
            gpus[model] = (low + compute.gpus * fewest, high + compute.gpus * all_of)
    if gpus:
        found["GPUs"] = ", ".join(
            f"{high:g} {model}" if low == high else f"{low:g}–{high:g} {model}" for model, (low, high) in gpus.items()
        )
    if spec.workers.gpus > 1 and spec.workers.link != "any":
        found["link"] = f"{spec.workers.link} {spec.workers.link_policy}"
    if spec.strategy == "parameterServer":
        if spec.servers is not None:
            found["servers"] = spec.servers.replicas + sum(group.replicas for group in spec.server_groups)
        found["consistency"] = f"ssp {spec.staleness}" if spec.consistency == "ssp" else spec.consistency
        if spec.backup_workers:
            found["backupWorkers"] = spec.backup_workers
    found["image"] = spec.image
    if spec.code is not None:
        found["code"] = spec.code.git.ref if spec.code.git else str(spec.code)
    if spec.datasets:
        found["datasets"] = ", ".join(_dataset_fact(item, program, mount) for mount in spec.datasets)
    if spec.checkpoint is not None:
        found["checkpoint"] = (
            f"{spec.checkpoint.path or f'volume of {spec.checkpoint.volume}'} every {spec.checkpoint.every}"
        )
    found["priority"] = spec.priority
    if spec.spot != "never":
        found["spot"] = spec.spot
    if spec.after:
        found["after"] = ", ".join(spec.after)
    if spec.schedule is not None:
        found["schedule"] = f"{spec.schedule.cron} {spec.schedule.time_zone}"
    if spec.suspended:
        found["state"] = "suspended"
    return found


def _dataset_fact(item: Item[TrainingJobSpec], program: Program, mount: DatasetMount) -> str:
    """A dataset with its version, resolved if the newest is meant: a new version then shows as a change of the job."""
    version = mount.version
    dataset = dataset_access.find(program, item.team, mount.name)
    if version is None and dataset is not None:
        version = dataset.spec.versions[-1].name
    return f"{mount.name} {version}" if version else mount.name


def unpinned(item: Item[TrainingJobSpec]) -> Iterator[Unpinned]:
    """Yield the datasets that are mounted without a version, and code that is no commit."""
    code = item.spec.code
    if code is not None and code.workspace is not None:
        text = "code from a workspace is in no repository: another run may have other code"
        yield Unpinned(("spec", "code", "workspace"), text, "push it, and write `git: {url: …, ref: COMMIT}`")
    elif code is not None and code.git is not None and not is_commit(code.git.ref):
        text = f"`{code.git.ref}` is a branch or tag: pods that start later may run other code"
        yield Unpinned(("spec", "code", "git", "ref"), text, "write the full name of a commit")
    for index, mount in enumerate(item.spec.datasets):
        if mount.version is None:
            text = f"dataset {mount.name} has no version: a new version would restart the job"
            yield Unpinned(("spec", "datasets", index, "name"), text, "add `version: NAME`")


def impact(old: Item[TrainingJobSpec], new: Item[TrainingJobSpec], effects: Sequence[ObjectEffect]) -> str | None:
    """Return the effect on the run and its resume point; None if no pods are stopped."""
    if old.spec.schedule is not None and new.spec.schedule is not None:
        return "takes effect with the next run; an active one goes on" if effects else None
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
    preemptible=lambda item: item.spec.preemptible,
    unpinned=unpinned,
    local=LOCAL,
)
