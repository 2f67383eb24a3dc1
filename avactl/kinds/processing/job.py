"""The elastic job of a processing: `avactl dataset process` in pods, as a training job for checks and lowering."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import orjson

from avactl.base.quantity import parse_quantity
from avactl.base.variable_references import escape_references
from avactl.contracts.processing import BESIDE
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.processing.spec import ProcessingJob, ProcessingJobSpec
from avactl.kinds.training.local import local_run
from avactl.kinds.training.roles import job_parts, leading_jobs
from avactl.kinds.training.spec import Checkpoint, TrainingJob, TrainingJobSpec
from avactl.program import dataset_access
from avactl.program.dataset_listing import version_directory
from avactl.program.local_run import LocalRun
from avactl.program.program import Item, Program
from avactl.program.workload import MadeVersion
from avactl.spec.documents.document import Document, Path
from avactl.spec.platform.dataset import DatasetSpec, Version
from avactl.spec.schema.pod_settings import PodSettings

SOURCE_LIST = "/source"
"""Mount path of the source's list of objects, if it is a file of the repository."""
_PLACES: dict[str, Path] = {"checkpoint": ("spec", "to"), "command": ("spec", "steps"), "args": ("spec", "steps")}


class Versions(NamedTuple):
    """Versions that a processing reads and makes."""

    dataset: Item[DatasetSpec]
    source: Version
    target: Version


def find_versions(item: Item[ProcessingJobSpec], program: Program) -> Versions | None:
    """Return the versions of a processing; None if one does not exist."""
    dataset = dataset_access.find(program, item.team, item.spec.dataset)
    if dataset is None or dataset.team != item.team:
        return None
    source = dataset_access.version_of(dataset, item.spec.from_version)
    target = dataset_access.version_of(dataset, item.spec.to)
    return None if source is None or target is None else Versions(dataset, source, target)


def target_url(versions: Versions) -> str:
    """Return the directory that a processing writes; "" if the version has none."""
    return (versions.target.url or "").rstrip("/")


def source_place(item: Item[ProcessingJobSpec], program: Program, versions: Versions) -> str:
    """Return what the pods read: a directory, or a manifest."""
    source = versions.source
    if source.manifest_url is not None:
        return source.manifest_url
    if source.manifest is not None:
        return f"{SOURCE_LIST}/manifest.jsonl"
    url = version_directory(versions.dataset, program, source).rstrip("/")
    makers = (each for each in program.of_kind(ProcessingJob) if each.team == item.team)
    made = any(each.spec.dataset == item.spec.dataset and each.spec.to == source.name for each in makers)
    return f"{url}{BESIDE}/manifest.jsonl" if made else url


def source_list_name(item: Item[ProcessingJobSpec]) -> str:
    """Name of the ConfigMap with the source's list of objects."""
    return f"{item.name}-source"


class _Locator:
    def __init__(self, outer: Document) -> None:
        self._outer = outer

    def locate(self, index: int, path: Path, key: bool) -> Span:
        return self._outer.span(*_outer_path(path), key=key)


def _outer_path(path: Path) -> Path:
    """Return the path in the document of a path in that of its job."""
    step = path[1] if path[:1] == ("spec",) and len(path) > 1 else ""
    return _PLACES.get(str(step), path)


class _Inside(Document):
    """The document of the job: values and locations are those of the outer one's."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Document) -> None:
        super().__init__(outer.file, outer.index, outer.value, _Locator(outer))
        self._outer = outer

    def removed(self, *path: str | int) -> Span | None:
        return self._outer.removed(*_outer_path(path))


class _Job(Item[TrainingJobSpec]):
    """The job: in messages it is the processing."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Item[ProcessingJobSpec], resource: TrainingJob) -> None:
        super().__init__(_Inside(outer.doc), resource)
        self.clusters, self.namespace = outer.clusters, outer.namespace
        self._outer = outer

    def __str__(self) -> str:
        return str(self._outer)


def job_of(item: Item[ProcessingJobSpec], source: str = "", target: str = "") -> Item[TrainingJobSpec]:
    """Return a processing as a job that reads and writes these places."""
    spec = item.spec
    steps = [step.to_data() for step in spec.steps]
    text = escape_references(orjson.dumps(steps).decode())
    args = [source, target, "--steps", text, "--jobs", str(_cores(spec))]
    if spec.skip_invalid:
        args += ["--skip-invalid", str(spec.skip_invalid)]
    given: dict[str, Any] = {
        "cluster": spec.cluster,
        "framework": "custom",
        "strategy": "elastic",
        "image": spec.image,
        "command": ["avactl", "dataset", "process"],
        "args": args,
        "env": spec.env,
        "pod": _pod_settings(item) if source.startswith(f"{SOURCE_LIST}/") else spec.pod,
        "workers": spec.workers,
        # Credentials are those of the bucket; a master that starts anew knows what was done.
        "checkpoint": Checkpoint(path=target) if target else None,
        "priority": spec.priority,
        "retries": spec.retries,
        "timeout": spec.timeout,
        "suspended": spec.suspended,
    }
    job = TrainingJobSpec.model_construct(**given)
    resource = TrainingJob.model_construct(
        api_version="avactl.dev/v1", metadata=item.resource.metadata, spec=job, patches=[]
    )
    return _Job(item, resource)


def _cores(spec: ProcessingJobSpec) -> int:
    return max(1, ceil(Fraction(parse_quantity(spec.workers.cpu)))) if spec.workers.cpu else 1


def _pod_settings(item: Item[ProcessingJobSpec]) -> PodSettings:
    """Return the settings of the pods with the list of objects."""
    given = item.spec.pod
    data = given.model_dump(mode="json", by_alias=True, exclude_unset=True) if given is not None else {}
    volume = {"name": "source", "mountPath": SOURCE_LIST, "configMap": {"name": source_list_name(item)}}
    return PodSettings.model_validate({**data, "volumes": [*data.get("volumes", ()), volume]})


def located_job(item: Item[ProcessingJobSpec], program: Program) -> Item[TrainingJobSpec] | None:
    """Return the job with the places of its versions; None if they do not exist."""
    versions = find_versions(item, program)
    if versions is None or not target_url(versions):
        return None
    return job_of(item, source_place(item, program, versions), target_url(versions))


def made_version(item: Item[ProcessingJobSpec], program: Program) -> MadeVersion | None:
    """Return the version that a processing makes, and the Jobs that have then succeeded."""
    versions = find_versions(item, program)
    if versions is None:
        return None
    job = job_of(item)
    return MadeVersion(versions.dataset.key, versions.target.name, tuple(leading_jobs(job, job_parts(job.spec))))


def run_locally(item: Item[ProcessingJobSpec]) -> LocalRun:
    """Return how a processing runs on one machine."""
    return local_run(job_of(item))


def with_workers(item: Item[ProcessingJobSpec], workers: int) -> Item[ProcessingJobSpec] | Diagnostic:
    """Return the processing with another number of workers, or the problem of that number."""
    own = item.spec.workers
    least, most = own.min or 1, own.max or own.min or 1
    if not least <= workers <= most:
        message = f"{workers} workers: the job has `min` {least} and `max` {most}"
        return Diagnostic("invalid-value", message, item.span("spec", "workers"))
    changed = item.spec.model_copy(update={"workers": own.model_copy(update={"replicas": workers})})
    copy: Item[ProcessingJobSpec] = Item(item.doc, item.resource.model_copy(update={"spec": changed}))
    copy.clusters, copy.namespace = item.clusters, item.namespace
    return copy
