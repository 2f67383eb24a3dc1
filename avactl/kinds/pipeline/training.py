"""The training job inside a pipeline: `spec.train.template` as a job, for the checks and lowering of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import LIVE_URL
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.pipeline.spec import PipelineSpec
from avactl.kinds.training.check import check
from avactl.kinds.training.lower import lower
from avactl.kinds.training.pod import store_env
from avactl.kinds.training.roles import MASTER, has_master, job_name, job_parts
from avactl.kinds.training.spec import TrainingJob, TrainingJobSpec
from avactl.kinds.training.workload import roles
from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.program.workload import WorkloadRole
from avactl.spec.documents.document import Document, Path

PREFIX: Path = ("spec", "train", "template")
RUN = "$(AVACTL_RUN)"
"""Number of the run, which Kubernetes puts into variables and arguments."""
RUN_ENV: Body = {"name": "AVACTL_RUN", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.RUN}']"}}}
LIVE_ENV: Body = {"name": "AVACTL_LIVE_URL", "valueFrom": {"fieldRef": {"fieldPath": LIVE_URL.field_path}}}


_NOT_IN_TEMPLATE: dict[str, Any] = {
    "cluster": None,
    "schedule": None,
    "after": [],
    "suspended": False,
    "ttl": None,
    "on_change": "replace",
}
"""Keys of a job that a pipeline decides."""


class _Locator:
    def __init__(self, outer: Document) -> None:
        self._outer = outer

    def locate(self, index: int, path: Path, key: bool) -> Span:
        return self._outer.span(*_path_in_pipeline(path), key=key)


def _path_in_pipeline(path: Path) -> Path:
    """Return the path in the pipeline's document of a path in that of its job."""
    return (*PREFIX, *path[1:]) if path[:1] == ("spec",) else path


class _Inside(Document):
    """The document of the job: values and locations are those of the pipeline's."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Document) -> None:
        value = {**outer.value, "spec": outer.get(*PREFIX)}
        super().__init__(outer.file, outer.index, value, _Locator(outer))
        self._outer = outer

    def removed(self, *path: str | int) -> Span | None:
        return self._outer.removed(*_path_in_pipeline(path))


class _Job(Item[TrainingJobSpec]):
    """The job: in messages it is the pipeline."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Item[PipelineSpec], resource: TrainingJob) -> None:
        super().__init__(_Inside(outer.doc), resource)
        self.clusters, self.namespace = outer.clusters, outer.namespace
        self._outer = outer

    def __str__(self) -> str:
        return str(self._outer)


def checkpoint_directory(item: Item[PipelineSpec], program: Program) -> str | None:
    """Return the directory where the training saves, in a run of its own; None if it is unknown."""
    train = item.spec.train
    if train.template is not None:
        checkpoint = train.template.checkpoint
        return None if checkpoint is None or checkpoint.path is None else f"{checkpoint.path.rstrip('/')}/{RUN}"
    job = training_job(item, program)
    checkpoint = None if job is None else job.spec.checkpoint
    return None if checkpoint is None or checkpoint.path is None else checkpoint.path.rstrip("/")


def training_job(item: Item[PipelineSpec], program: Program) -> Item[TrainingJobSpec] | None:
    """Return the job that `train.job` names."""
    job = item.spec.train.job
    return None if job is None else program.find_kind(TrainingJob, job, item.team)


def running_jobs(job: Item[TrainingJobSpec]) -> list[str]:
    """Return the names of the Jobs that run the code of a running job."""
    return [job_name(job, part.name) for part in job_parts(job.spec) if part.role != MASTER]


def job_owners(name: str, program: Program) -> list[str]:
    """Return the teams that have a job of that name."""
    return [str(job.team) for job in program.of_kind(TrainingJob) if job.spec_name == name]


def job_of(item: Item[PipelineSpec], *, run: bool) -> Item[TrainingJobSpec] | None:
    """Return `spec.train.template` as a job; with `run`, it saves below a directory of its run."""
    template = item.spec.train.template
    if template is None:
        return None
    metadata = item.resource.metadata.model_copy(update={"name": f"{item.name}-train", "object_name": None})
    template = template.model_copy(update=_NOT_IN_TEMPLATE)
    checkpoint = template.checkpoint
    if run and checkpoint is not None and checkpoint.path is not None:
        own = checkpoint.model_copy(update={"path": f"{checkpoint.path.rstrip('/')}/{RUN}"})
        template = template.model_copy(update={"checkpoint": own})
    resource = TrainingJob.model_construct(api_version="avactl.dev/v1", metadata=metadata, spec=template, patches=[])
    return _Job(item, resource)


def inner_specs(item: Item[PipelineSpec]) -> list[Item[TrainingJobSpec]]:
    """Return the training job, as it is written."""
    job = job_of(item, run=False)
    return [] if job is None else [job]


def training_roles(item: Item[PipelineSpec]) -> Iterator[WorkloadRole]:
    """Yield the pods of one run's training, with paths in the pipeline's document."""
    job = job_of(item, run=False)
    for role in roles(job) if job is not None else ():
        replicas = tuple(str(step) for step in _path_in_pipeline(role.replicas_path)) if role.replicas_path else ()
        yield role._replace(path=_path_in_pipeline(role.path), replicas_path=replicas)


def training_problems(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield what is wrong with the template as a job, and what it may not be in a pipeline."""
    job, spec = job_of(item, run=False), item.spec.train.template
    if job is None or spec is None:
        return
    for key, given, hint in (
        ("cluster", spec.cluster is not None, "write `cluster` in the `spec` of the pipeline"),
        ("schedule", spec.schedule is not None, "write it in `trigger`"),
        ("after", bool(spec.after), "a run begins by its `trigger`"),
        ("suspended", spec.suspended, "write `suspended: true` in the `spec` of the pipeline"),
        ("ttl", spec.ttl is not None, "the Jobs of a run are kept until the next one"),
        ("onChange", spec.on_change != "replace", "a change is for the next run"),
    ):
        if given:
            yield Diagnostic(
                "conflicting-keys",
                f"`{key}` is not for the template of a pipeline",
                item.span(*PREFIX, key, key=True),
                hint=f"remove `{key}`: {hint}",
            )
    if has_master(spec) or spec.strategy == "mpi":
        what = "hosts" if spec.strategy == "mpi" else "job master"
        yield Diagnostic(
            "wrong-strategy",
            f"the {what} of `{spec.strategy}` keeps the state of one run, and runs of a pipeline share their objects",
            item.span(*PREFIX, "strategy"),
            hint="use `single`, `allReduce`, or `parameterServer` without a job master",
        )
        return
    if spec.checkpoint is None or spec.checkpoint.path is None:
        at = (*PREFIX, "checkpoint") if spec.checkpoint is not None else PREFIX
        yield Diagnostic(
            "missing-key",
            "the template has no `checkpoint.path`, so a trained model is nowhere to be published from",
            item.span(*at, key=True),
            hint="add `checkpoint: {path: s3://BUCKET/DIRECTORY}`",
        )
    # Templates have shorter names than Jobs: the pipeline checks them.
    yield from (problem for problem in check(job, program) if problem.code != "name-too-long")


def training_objects(item: Item[PipelineSpec], program: Program) -> list[Manifest]:
    """Return the objects of the training: its Jobs as templates, all others as they are."""
    job = job_of(item, run=True)
    if job is None:
        return []
    found = []
    for manifest in lower(job, program):
        manifest.item = item
        step = "idle" if item.spec.suspended else names.TRAINS
        found.append(as_template(item, manifest, step) if manifest.kind == "Job" else manifest)
    return found


def as_template(item: Item[PipelineSpec], manifest: Manifest, step: str) -> Manifest:
    """Return a suspended CronJob from which the daemon makes a Job in each run, of the name that the manifest has."""
    metadata, job = manifest.body["metadata"], dict(manifest.body["spec"])
    # The daemon reads how a Job ended, and removes it when the next run begins.
    job.pop("ttlSecondsAfterFinished", None)
    template = job["template"]
    pod = dict(template["spec"])
    for group in ("initContainers", "containers"):
        if group in pod:
            pod[group] = [_with_run(each) if group == "containers" or _uses_run(each) else each for each in pod[group]]
    # The daemon sets the number of the run and the live URL.
    labels = {**template["metadata"]["labels"], names.PIPELINE: item.name, names.RUN: "0"}
    notes = {**template["metadata"].get("annotations", {}), LIVE_URL.name: ""}
    job["template"] = {"metadata": {"labels": labels, "annotations": notes}, "spec": pod}
    body: Body = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], names.PIPELINE: item.name},
            "annotations": {**metadata.get("annotations", {}), names.PIPELINE_STEP: step},
        },
        "spec": {
            "schedule": "0 0 1 1 *",
            "suspend": True,
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {
                # Annotations too: followers compare the run of a Job with their own.
                "metadata": k8s.drop_none(
                    labels={**metadata["labels"], names.PIPELINE: item.name}, annotations=metadata.get("annotations")
                ),
                "spec": job,
            },
        },
    }
    return Manifest(item, manifest.cluster, body)


def _uses_run(container: Body) -> bool:
    return any(RUN in str(each.get("value", "")) for each in container.get("env", ()))


def _with_run(container: Body) -> Body:
    """Put the run's variables before those that use them."""
    env = [each for each in container.get("env", ()) if each["name"] not in (RUN_ENV["name"], LIVE_ENV["name"])]
    return {**container, "env": [RUN_ENV, LIVE_ENV, *env]}


def training_names(item: Item[PipelineSpec]) -> list[str]:
    """Return the names of the templates of the training's Jobs."""
    job = job_of(item, run=False)
    return [] if job is None else [job_name(job, part.name) for part in job_parts(job.spec)]


def store_secrets(item: Item[PipelineSpec], program: Program, url: str) -> list[Body]:
    """Return the variables with the credentials of a location."""
    return store_env(item, program, url)
