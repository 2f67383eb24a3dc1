"""Hooks for the workloads of pipelines: what one run requests at once, facts and look in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.kinds.pipeline.service import service_of
from avactl.kinds.pipeline.spec import PipelineSpec
from avactl.kinds.pipeline.training import training_roles
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.registry import Fact
from avactl.program.workload import Lifecycle, WorkloadHooks, WorkloadRole
from avactl.spec.schema.compute import DatasetMount

_VALIDATION_PATH = ("spec", "validation", "resources")


def roles(item: Item[PipelineSpec]) -> Iterator[WorkloadRole]:
    """Yield the pods of the largest step of a run; none while it is suspended. Steps follow each other."""
    if item.spec.suspended:
        return
    training = list(training_roles(item))
    measuring = validation_role(item)

    def gpus(found: list[WorkloadRole]) -> Fraction:
        return sum((Fraction(str(role.compute.gpus)) * role.least for role in found), Fraction(0))

    yield from training if training and gpus(training) >= gpus([measuring]) else [measuring]


def validation_role(item: Item[PipelineSpec]) -> WorkloadRole:
    """Return the pod of the validation."""
    return WorkloadRole(_VALIDATION_PATH, item.spec.validation.resources, 1, 1)


def trigger_text(item: Item[PipelineSpec]) -> tuple[str, str]:
    """Return the key of the trigger, and what it says."""
    spec = item.spec.trigger
    if spec.schedule is not None:
        return "schedule", f"{spec.schedule.cron} {spec.schedule.time_zone}"
    if spec.dataset is not None:
        return "dataset", f"new version of {spec.dataset.name}"
    if spec.commit is not None:
        return "commit", f"commit to {', '.join(spec.commit.paths)}"
    assert spec.checkpoint is not None  # a trigger has exactly one key
    return "checkpoint", f"checkpoint every {spec.checkpoint.every}"


def summary(item: Item[PipelineSpec]) -> str:
    """Return trigger and service."""
    deploy = item.spec.deploy
    return trigger_text(item)[1] + (f" · {deploy.service}" if deploy is not None else "")


def facts(item: Item[PipelineSpec], program: Program) -> dict[str, Fact]:
    """Trigger, what a run requests, bounds, and where models go."""
    spec = item.spec
    result: dict[str, Fact] = {"trigger": trigger_text(item)[1]}
    sums: dict[str, Fraction] = {}
    for role in roles(item):
        model = gpu_model(program, item.cluster, role.compute)
        if model is not None:
            sums[model] = sums.get(model, Fraction(0)) + Fraction(str(role.compute.gpus)) * role.most
    if sums:
        result["GPUs"] = ", ".join(f"{float(count):g} {model}" for model, count in sorted(sums.items()))
    if spec.train.template is not None:
        result["image"] = spec.train.template.image
    else:
        result["job"] = spec.train.job
    result["metrics"] = ", ".join(metric.name for metric in spec.validation.metrics)
    result["publish"] = f"{spec.publish.to}, {spec.publish.keep} kept"
    if spec.deploy is not None:
        how = "pull request" if spec.deploy.by == "pullRequest" else "commit"
        service = service_of(item, program)
        there = f" on {service.cluster}" if service is not None and service.cluster != item.cluster else ""
        result["deploy"] = f"{spec.deploy.service}{there} by {how}"
    if spec.concurrency != "forbid":
        result["concurrency"] = spec.concurrency
    if spec.suspended:
        result["suspended"] = "yes"
    return result


def mount_lists(item: Item[PipelineSpec]) -> list[tuple[tuple[str, ...], list[DatasetMount]]]:
    """Return the lists of mounted datasets with their paths."""
    train = item.spec.train
    found: list[tuple[tuple[str, ...], list[DatasetMount]]] = [
        (("spec", "validation", "datasets"), item.spec.validation.datasets)
    ]
    if train.template is not None:
        found.insert(0, (("spec", "train", "template", "datasets"), train.template.datasets))
    return found


WORKLOAD = WorkloadHooks(
    Lifecycle.JOB,
    "pipeline",
    roles,
    checks_capacity=True,
    badge="flow",
    summary=summary,
    timeout=lambda item: item.spec.timeout,
)
