"""Training jobs as processes on one machine: what differs from their pods."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.diagnostics import Diagnostic
from avactl.kinds.training import job_master
from avactl.kinds.training.addressing import build_hostfile, slots_per_worker
from avactl.kinds.training.followers import EVALUATOR_GRACE
from avactl.kinds.training.roles import MASTER, RolePods, job_name, job_parts, rendezvous_name, worker_bounds
from avactl.kinds.training.spec import TrainingJobSpec, Workers
from avactl.kinds.training.strategies import strategy_problems
from avactl.program.local_run import LocalHooks, LocalRole, LocalRun
from avactl.program.program import Item
from avactl.spec.schema.values import duration_seconds


def with_workers(item: Item[TrainingJobSpec], workers: int) -> Item[TrainingJobSpec] | Diagnostic:
    """Return the job with another number of workers, or the problem of that number."""
    spec = item.spec
    path = ("spec", "workers") if "workers" in spec.model_fields_set else ("spec",)
    if spec.strategy == "elastic":
        least, most = worker_bounds(spec)
        if not least <= workers <= most:
            message = f"{workers} workers: the job has `min` {least} and `max` {most}"
            return Diagnostic("invalid-value", message, item.span(*path))
    changed = spec.model_copy(update={"workers": _with_replicas(spec.workers, workers)})
    copy: Item[TrainingJobSpec] = Item(item.doc, item.resource.model_copy(update={"spec": changed}))
    copy.clusters, copy.namespace = item.clusters, item.namespace
    return next((problem for problem in strategy_problems(copy) if problem.severity == "error"), copy)


def _with_replicas(workers: Workers, count: int) -> Workers:
    # `model_copy` also counts the key as set, which elastic jobs look at.
    return workers.model_copy(update={"replicas": count})


def local_run(item: Item[TrainingJobSpec]) -> LocalRun:
    """Return how a job runs on one machine."""
    spec = item.spec
    made = job_parts(spec)
    return LocalRun(
        roles=[_local_role(item, part) for part in made],
        first_pod_decides=spec.strategy == "elastic",
        timeout=None if spec.timeout is None else float(duration_seconds(spec.timeout)),
        files=_hostfiles(item),
        env=_local_environment,
        notes=[] if spec.health_check is None else ["no health check: all workers are on this machine"],
        checkout="" if spec.code is None else spec.code.mount,
        code="" if spec.code is None else str(spec.code),
        data=[(mount.mount, mount.name) for mount in spec.datasets],
    )


def _local_role(item: Item[TrainingJobSpec], part: RolePods) -> LocalRole:
    spec = item.spec
    replicas, skipped = part.replicas, ""
    if part.role == "worker" and spec.strategy == "elastic" and "replicas" in spec.workers.model_fields_set:
        replicas = spec.workers.replicas
    if spec.strategy == "mpi" and part.role == "worker":
        skipped = "mpirun starts its ranks on this machine"
    return LocalRole(
        part.name,
        job_name(item, part.name),
        part.leads,
        replicas,
        skipped,
        linger=EVALUATOR_GRACE if part.role == "evaluator" else 0,
        stops_last=part.role == "server" and spec.checkpoint is not None,
        args=job_master.local_args(item) if part.role == MASTER else None,
    )


def _hostfiles(item: Item[TrainingJobSpec]) -> dict[tuple[str, str], str]:
    """Replace MPI's hostfile: mpirun would call ssh for each of several loopback addresses."""
    if item.spec.strategy != "mpi":
        return {}
    slots = sum(
        slots_per_worker(item.spec, part) * part.replicas for part in job_parts(item.spec) if part.role == "worker"
    )
    return {
        (rendezvous_name(item), key): text for key, text in build_hostfile(item.spec, [("localhost", slots)]).items()
    }


def _local_environment(role: str, index: int) -> Mapping[str, str]:
    if role == "launcher":
        # Ranks share the machine with others: none is bound to a core, and none polls while it waits.
        return {
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }
    return {}


LOCAL = LocalHooks(local_run, with_workers)
