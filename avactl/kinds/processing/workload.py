"""Hooks for the workloads of processings: roles, facts and look in the graph."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.kinds.processing.job import job_of, made_version, run_locally, with_workers
from avactl.kinds.processing.spec import ProcessingJobSpec
from avactl.kinds.training.workload import roles as job_roles
from avactl.program.local_run import LocalHooks
from avactl.program.program import Item, Program
from avactl.program.registry import Fact
from avactl.program.workload import Lifecycle, WorkloadHooks, WorkloadRole
from avactl.spec.schema.processing import STEPS


def roles(item: Item[ProcessingJobSpec]) -> Iterator[WorkloadRole]:
    """Return the pods of a processing; none while it is suspended."""
    return job_roles(job_of(item))


def step_names(item: Item[ProcessingJobSpec]) -> str:
    """Return the names of the steps, in their order."""
    return ", ".join(name for step in item.spec.steps for name in STEPS if getattr(step, name) is not None)


def summary(item: Item[ProcessingJobSpec]) -> str:
    """Return what is made of what."""
    return f"{item.spec.dataset} {item.spec.from_version} → {item.spec.to}"


def facts(item: Item[ProcessingJobSpec], program: Program) -> dict[str, Fact]:
    """Versions, steps, image and workers."""
    spec = item.spec
    result: dict[str, Fact] = {
        "makes": summary(item),
        "steps": step_names(item),
        "workers": f"{spec.workers.min or 1}–{spec.workers.max or spec.workers.min or 1}",
        "image": spec.image,
    }
    if spec.skip_invalid:
        result["may leave out"] = f"{spec.skip_invalid:,} objects"
    if spec.suspended:
        result["suspended"] = "yes"
    return result


WORKLOAD = WorkloadHooks(
    Lifecycle.JOB,
    "processing job",
    roles,
    checks_capacity=True,
    badge="data",
    summary=summary,
    timeout=lambda item: item.spec.timeout,
    local=LocalHooks(run_locally, with_workers),
    makes=made_version,
)
