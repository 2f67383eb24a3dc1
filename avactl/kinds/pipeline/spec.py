"""The Pipeline kind: train, validate, publish and deploy a model again and again."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from avactl.kinds.training.spec import JobName, TrainingJobSpec
from avactl.spec.schema.base import Env, Model, Resource
from avactl.spec.schema.compute import DatasetMount, DatasetName, GpuLinkCompute
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.schedules import Cron, TimeZone
from avactl.spec.schema.values import (
    ClusterRef,
    Count,
    Duration,
    Image,
    Name,
    ObjectUrl,
    PositiveDuration,
    RelPath,
    value_error,
)

TRIGGERS = ("schedule", "dataset", "commit", "checkpoint")


def _exactly_one(*keys: str) -> ConfigDict:
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in keys]})


class Times(Model):
    """Times at which a run begins."""

    cron: Cron = Field(description="`minute hour day month weekday`, numbers as in crontab(5).")
    time_zone: TimeZone = Field("Etc/UTC", description="Time zone of `cron`, such as `Europe/Berlin`.")


class NewVersion(Model):
    """A run begins when the specs declare a new version of a dataset."""

    name: DatasetName = Field(description="Dataset of the team or the platform; `TEAM/NAME` for a shared one.")


def _check_pattern(value: str) -> str:
    if value.startswith("./"):
        raise value_error(f"`{value[:80]}` matches no file: paths have no `./`", f"write `{value[2:82]}`")
    if value.startswith("/") or ".." in value.split("/") or not value.isprintable() or len(value) > 200:
        raise value_error(f"`{value[:80]}` is not a pattern of paths in the repository", "write e.g. `train/**`")
    return value


PathPattern = Annotated[
    str,
    AfterValidator(_check_pattern),
    WithJsonSchema({"type": "string", "pattern": r"^([^./]|\.[^/]).*$", "maxLength": 200}),
]


class NewCommit(Model):
    """A run begins when a commit of the branch that the cluster follows changes certain files."""

    paths: Annotated[list[PathPattern], Field(min_length=1, max_length=32)] = Field(
        description="Patterns of the paths, as in CODEOWNERS: `train/**`, `*.py`, `models/ranker/`."
    )


class NewCheckpoint(Model):
    """A run publishes what a job that never ends has saved last."""

    every: Duration = Field(description="Time between two runs; at least 1m. One without anything new does nothing.")


class Trigger(Model):
    """When a run begins. Set exactly one key."""

    model_config = _exactly_one(*TRIGGERS)

    schedule: Times | None = Field(None, description="At certain times.")
    dataset: NewVersion | None = Field(None, description="When a dataset has a new version.")
    commit: NewCommit | None = Field(None, description="When a commit changes certain files.")
    checkpoint: NewCheckpoint | None = Field(
        None, description="Again and again, with what the running job `train.job` has saved: streaming training."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [key for key in TRIGGERS if getattr(self, key) is not None]
        if len(given) > 1:
            raise value_error(f"`{given[0]}` and `{given[1]}` exclude each other", "keep one, or declare two pipelines")
        if not given:
            raise value_error("`trigger` is empty", "write `schedule`, `dataset`, `commit` or `checkpoint`")
        return self


def _check_output(value: str) -> str:
    parts = value.split("/")
    if any("*" in part for part in parts[:-1]) or parts[-1].count("*") > 1:
        raise value_error(f"`{value[:80]}` has `*` in more than its last name, or twice", "write e.g. `export/*`")
    if not re.fullmatch(r"[A-Za-z0-9._*-]+(/[A-Za-z0-9._*-]+)*", value):
        raise value_error(f"`{value[:80]}` is not a path of letters, digits, `.`, `_` and `-`", "write e.g. `export`")
    return value


Output = Annotated[
    RelPath,
    AfterValidator(_check_output),
    WithJsonSchema(
        {"type": "string", "pattern": r"^([A-Za-z0-9._-]+/)*[A-Za-z0-9._-]*\*?[A-Za-z0-9._-]*$", "maxLength": 200}
    ),
]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100)]


class Train(Model):
    """Training of the model. Set one of `template` and `job`."""

    model_config = _exactly_one("template", "job")

    template: TrainingJobSpec | None = Field(
        None,
        description="Spec of a TrainingJob that each run starts anew. Its `checkpoint.path` gets a directory for each "
        "run.",
    )
    job: JobName | None = Field(
        None, description="TrainingJob of the team that runs without end, for `trigger.checkpoint`."
    )
    output: Output | None = Field(
        None,
        description="File or directory below the checkpoint path that is the model. With `*` in its last name, the "
        "newest of several: the one with the highest number. Default: the whole directory.",
    )
    marker: FileName | None = Field(
        None, description="File that says that a directory of `output` is complete, such as `_SUCCESS`."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.template is not None and self.job is not None:
            raise value_error("`template` and `job` exclude each other", "keep `job` for `trigger.checkpoint`")
        if self.template is None and self.job is None:
            raise value_error("`train` is empty", "write `template`, with the spec of a TrainingJob")
        return self


class AgainstLive(Model):
    """Bound against the version that is live. Set one key."""

    model_config = _exactly_one("atLeast", "atMost")

    at_least: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="Smallest multiple of the live version's value, for metrics that are better if higher."
    )
    at_most: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="Largest multiple of the live version's value, for metrics that are better if lower."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise value_error("`vsLive` has either `atLeast` or `atMost`", "write `vsLive: {atLeast: 0.99}`")
        return self


class Metric(Model):
    """A number that the validation writes, and its bounds."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [key]} for key in ("min", "max", "vsLive")]})

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=63)] = Field(
        description="Key of the metrics file."
    )
    min: float | None = Field(None, description="Smallest value that passes.")
    max: float | None = Field(None, description="Largest value that passes.")
    vs_live: AgainstLive | None = Field(
        None, description="Bound against the live version. It holds as long as no version is live."
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None and self.vs_live is None:
            raise value_error(f"metric `{self.name}` has no bound", "add `min`, `max` or `vsLive`")
        return self


class Validation(Model):
    """A Job that measures a trained model, and what it must reach.

    The program writes a JSON object of numbers, at most 4 KiB, to the file AVACTL_METRICS: `{"auc": 0.91}`. With
    `"live": {"auc": 0.9}` it also says what the live version reaches on the same data; otherwise `vsLive` compares
    with the metrics that version was published with. AVACTL_CANDIDATE_URL and AVACTL_LIVE_URL are the two.
    """

    image: Image = Field(description="Its image.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the image's.")
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    resources: GpuLinkCompute = Field(default_factory=GpuLinkCompute, description="Resources of its pod.")
    pod: PodSettings | None = Field(None, description="Settings of the pod, with Kubernetes' key names.")
    timeout: PositiveDuration = Field("1h", description="Time after which it has failed.")
    metrics: Annotated[list[Metric], Field(min_length=1, max_length=32)] = Field(
        description="What a model must reach to be published."
    )


class Publish(Model):
    """Where models are published: each version in a directory of its own that never changes."""

    to: ObjectUrl = Field(description="Directory in an object store: version 7 is `TO/7/`.")
    keep: Count = Field(
        10, description="Published versions to keep. Those that a spec names, and that are live, are kept in any case."
    )


class Deploy(Model):
    """The service that serves the model."""

    service: Name = Field(description="ServingDeployment of the team.")
    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)] | None = Field(
        None, description="Which of the service's models. Default: its only one."
    )
    by: Literal["commit", "pullRequest"] = Field(
        "pullRequest",
        description="`commit`: a commit on the branch that the cluster follows. `pullRequest`: a pull request that "
        "somebody merges.",
    )


class PipelineSpec(Model):
    """Continuous training and delivery of one model."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    trigger: Trigger = Field(description="When a run begins.")
    train: Train = Field(description="What trains the model.")
    validation: Validation = Field(description="What a model must reach to be published.")
    publish: Publish = Field(description="Where models are published.")
    deploy: Deploy | None = Field(None, description="Service that gets the new version. Default: none.")
    concurrency: Literal["forbid", "replace", "queue"] = Field(
        "forbid",
        description="A run that is due while another is active: `forbid` skips it, `replace` stops the active one, "
        "`queue` starts it afterwards; of several that wait, the last.",
    )
    timeout: PositiveDuration | None = Field(None, description="Longest run, from its begin to the publication.")
    retries: Annotated[int, Field(ge=0, le=10)] = Field(2, description="How often a failed step is repeated.")
    suspended: bool = Field(False, description="Begin no run.")


class Pipeline(Resource):
    """Continuous training and delivery: trigger, train, validate, publish, deploy by a commit.

    Compiles to suspended CronJobs, the templates of the Jobs of its steps, with what its training needs beside them,
    and a ConfigMap with its plan for the delivery daemon.
    """

    KIND: ClassVar[str] = "Pipeline"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Pipeline"] = Field("Pipeline", description="`Pipeline`.")
    spec: PipelineSpec = Field(description="The pipeline.")
