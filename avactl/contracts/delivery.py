"""Configuration of the delivery daemon for pipelines and services, and the state that the daemon keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from avactl.contracts.document import (
    Contract,
    ContractPart,
    Count,
    ObjectName,
    RootContract,
    Seconds,
    Text,
    UnixTime,
    absent,
)

PLAN_KEY, STATE_KEY, PROBLEM_KEY = "pipeline.json", "state.json", "problem"
"""Keys of a pipeline's ConfigMaps: its plan; its state, and the problem that stops it."""
SERVICE_KEY = "service.json"
"""Key of the ConfigMap with a service's `RollbackPlan`."""
REPORT_KEY = "report.json"
"""Key of the ConfigMap with a service's `ReportPlan`."""
HEALTH_KEY, PROMOTION_KEY = "health.json", "promotion.json"
"""Keys of the ConfigMaps with a `HealthPlan`, and with a `PromotionPlan`."""
MAX_FIELDS = 32
"""Values that one promotion changes, and that a record has."""
MAX_REJECTED = 16
"""Rejected versions that a record remembers."""
MAX_KNOWN = 128
"""Versions whose metrics a state holds."""
MAX_ORIGINS = 16
"""Distinct images, and distinct commits, of one training in a state."""
IMAGE_DIGEST_PATTERN = "(?:[A-Za-z0-9._:/-]{1,255}@)?(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
"""Digest of an image, with its repository where it has one."""
COMMIT_PATTERN = "(?:[0-9a-f]{40}|[0-9a-f]{64})"
Phase = Literal[
    "idle",
    "clearing",
    "training",
    "staging",
    "validating",
    "sealing",
    "deploying",
    "rolling",
    "reverting",
    "stopping",
]
_MAX_BYTES = 1 << 20
_MaybeText = Annotated[str, Field(max_length=4096)]
_ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")]
_Names = Annotated[tuple[ObjectName, ...], Field(max_length=1_000)]
_Texts = Annotated[tuple[Text, ...], Field(max_length=10_000)]
_ProvenanceKind = Annotated[str, StringConstraints(pattern=r"^(images|commits)\Z")]
_Provenance = Annotated[str, StringConstraints(pattern=rf"^({IMAGE_DIGEST_PATTERN}|{COMMIT_PATTERN})\Z")]
"""Digest of an image, or commit of code."""
_Ran = Mapping[_ProvenanceKind, Annotated[list[_Provenance], Field(max_length=MAX_ORIGINS)]]
"""Images, and commits of the code, that the training ran."""
MAX_LINEAGE_BYTES = 256 * 1024
"""Maximum size of the annotations of an object in Kubernetes."""
_Value = Annotated[str, Field(max_length=MAX_LINEAGE_BYTES)]
_Location = Annotated[str, Field(max_length=6000)]
"""A path may have 4,096 bytes, and a URL begins with its store."""


class TriggerPlan(ContractPart):
    """When a run is due."""

    kind: Literal["schedule", "dataset", "commit", "checkpoint"]
    cron: Text = "-"
    time_zone: Text | None = None
    """None: UTC."""
    dataset: Text = "-"
    version: Text = "-"
    """Newest version of the dataset."""
    paths: _Texts = ()
    every: Seconds = 0


class TrainPlan(ContractPart):
    """The training of a pipeline."""

    jobs: _Names
    """Templates of the training's Jobs."""
    running_jobs: _Names = ()
    """Running Jobs that train without end, in a pipeline without templates."""


class MetricBound(ContractPart):
    """Bounds of one metric."""

    name: Text
    min: float | None = absent(None)
    max: float | None = absent(None)
    at_least: float | None = absent(None)
    """Smallest multiple of the live version's value."""
    at_most: float | None = absent(None)


class ValidationPlan(ContractPart):
    """The validation of a candidate."""

    job: ObjectName
    metrics: Annotated[tuple[MetricBound, ...], Field(max_length=1_000)]
    digest: Text = "-"
    """Digest of the validation in the specs; plans before it have none."""


class PublishPlan(ContractPart):
    """Where versions are published."""

    to: Text
    """Directory of all versions."""
    keep: Count = 0
    declared: _Texts
    """URLs below the directory that services declare."""


class ValuePaths(ContractPart):
    """Paths of a model's values in the document of a service."""

    url: Text
    version: Text


class DeployPlan(ContractPart):
    """Where a deployment writes, and what it deploys to."""

    by: Literal["commit", "pullRequest"]
    service: ObjectName
    """Name of the Deployment, LeaderWorkerSet or DisaggregatedSet."""
    namespace: ObjectName
    model: Text
    url: Text | None = None
    file: Text
    """YAML file of the service, from the root of the specs."""
    document: Text
    """Name of the service in that file."""
    paths: ValuePaths
    rollout: bool = False
    """True if the service says by a condition how its rollout ends."""
    cluster: ObjectName | None = absent(None)
    """Cluster of the service if the pipeline runs on another one, which cannot read that condition."""


class CodeOrigin(ContractPart):
    """The repository of the code in the specs."""

    url: _MaybeText
    ref: _MaybeText


class SpecOrigin(ContractPart):
    """Origin of a version, from the specs; versions are published with it."""

    job: _MaybeText | None = absent(None)
    """Name of the running job, in a pipeline without templates."""
    datasets: Mapping[_MaybeText, _MaybeText] = {}
    """Versions of datasets."""
    image: _MaybeText | None = absent(None)
    command: tuple[_Value, ...] | None = absent(None)
    parameters: Mapping[_MaybeText, _Value] | None = absent(None)
    """Variables."""
    code: CodeOrigin | None = absent(None)


class VersionLineage(SpecOrigin, Contract):
    """`lineage.json` of a published version, and `AVACTL_LINEAGE` with what is known before it is published."""

    MAX_BYTES = MAX_LINEAGE_BYTES
    version: Count | None = absent(None)
    run: Count | None = absent(None)
    cause: _MaybeText = absent("")
    """Trigger of the run: version of the dataset, commit, or time."""
    commit: _MaybeText = ""
    """Commit of the specs at the begin of the run."""
    ran: _Ran = absent({})
    source: _Location = absent("")
    """URL of the directory that the model was copied from."""
    metrics: Mapping[_MaybeText, float] = {}
    parent: _MaybeText = ""
    """The version that was live at the validation."""
    files: Count | None = absent(None)
    bytes: Count | None = absent(None)
    manifest_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}\Z")] | None = absent(None)


class CopiedOutput(Contract):
    """`origin.json` of a version: which output of a training is copied to it. It is written before the copy."""

    MAX_BYTES = 64 * 1024
    directory: _Location = Field(validation_alias="from", serialization_alias="from")
    """URL of the checkpoint directory."""
    output: _Location
    """Path of the model below it; empty for all of it."""


class PipelinePlan(Contract):
    """`pipeline.json`: the plan of one pipeline."""

    MAX_BYTES = _MAX_BYTES
    name: ObjectName
    team: ObjectName
    namespace: ObjectName
    trigger: TriggerPlan
    train: TrainPlan
    stage: ObjectName
    validation: ValidationPlan = Field(validation_alias="validate", serialization_alias="validate")
    seal: ObjectName
    publish: PublishPlan
    deploy: DeployPlan | None
    concurrency: Literal["forbid", "replace", "queue"]
    timeout: Count | None
    """Longest time until the publication, in seconds."""
    retries: Count = 0
    suspended: bool = False
    lineage: SpecOrigin


class RollbackPlan(Contract):
    """`service.json`: a service with a rollout, and the spec that a roll-back in git changes."""

    MAX_BYTES = _MAX_BYTES
    cluster: ObjectName
    namespace: ObjectName
    name: ObjectName
    """Name of the Deployment."""
    team: ObjectName
    file: Text
    """YAML file of the service, from the root of the specs."""
    document: Text
    """Name of the service in that file."""
    by: Literal["commit", "pullRequest"]


class ReportPlan(Contract):
    """`report.json`: a model of a service that a pipeline of another cluster deploys.

    The delivery daemon of the service's cluster records in git how rollouts of the model end.
    """

    MAX_BYTES = 4096
    cluster: ObjectName
    """Cluster of the service."""
    namespace: ObjectName
    service: ObjectName
    """Name of the Deployment."""
    model: _ModelName


class RolloutRecord(Contract):
    """File of a branch `avactl-rollouts/CLUSTER`: how the last rollout of a model on that cluster ended."""

    MAX_BYTES = 8192
    url: Text
    """URL of the model."""
    outcome: Literal["promoted", "rejected"]


_FieldPath = Annotated[str, Field(min_length=1, max_length=200)]
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}\Z")]
ValueDigests = Annotated[Mapping[_FieldPath, _Digest], Field(max_length=MAX_FIELDS)]
"""Digest of each value by its path, as `avactl set` takes it."""


def value_digest(value: object) -> str:
    """Return the digest of a value of a spec: plain data, None for one that is not there."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


class PromotedValues(RootContract[ValueDigests]):
    """Annotation `PROMOTED_VALUES` of a Deployment: digests of the values that it was compiled from."""


class HealthPlan(Contract):
    """`health.json`: a service in a promotion, whose health the delivery daemon of its cluster records in git."""

    MAX_BYTES = 4096
    cluster: ObjectName
    namespace: ObjectName
    service: ObjectName
    """Name of the Deployment."""
    window: Seconds
    """Seconds of health that the promotion waits for."""
    fields: Annotated[tuple[_FieldPath, ...], Field(max_length=MAX_FIELDS)] = absent(())
    """Values that are promoted to the service, by which it remembers what it has rolled back; empty for a source."""


class HealthRecord(Contract):
    """File of a branch `avactl-rollouts/CLUSTER`: the version that a service runs, and since when it is healthy.

    Times are Unix seconds by the clock of that cluster's API server.
    """

    MAX_BYTES = 64 * 1024
    values: ValueDigests
    template: Annotated[str, Field(max_length=64)]
    """Digest of the compiled pod template."""
    outcome: Literal["progressing", "healthy", "unhealthy", "rejected"]
    since: UnixTime
    """Begin of this outcome."""
    seen: UnixTime
    """When the daemon last found it so. Time after it is not known to be healthy."""
    rejected: Annotated[tuple[_Digest, ...], Field(max_length=MAX_REJECTED)] = absent(())
    """Digests of the values that are promoted to the service together, of versions that were rolled back."""
    proven: bool = absent(False)
    """True if these values have been healthy: a roll-back then is that of another change of the service."""


class PromotedSpec(ContractPart):
    """A service of a promotion, and where its spec is."""

    cluster: ObjectName
    namespace: ObjectName
    service: ObjectName
    """Name of the Deployment."""
    file: Text
    """YAML file of the service, from the root of the specs."""
    document: Text
    """Name of the service in that file."""


class PromotionPlan(Contract):
    """`promotion.json`: promotion of values from the spec of one service to that of another one of the team."""

    MAX_BYTES = 64 * 1024
    team: ObjectName
    source: PromotedSpec
    target: PromotedSpec
    fields: Annotated[tuple[_FieldPath, ...], Field(min_length=1, max_length=MAX_FIELDS)]
    window: Seconds
    """Seconds that the source must be healthy."""
    by: Literal["commit", "pullRequest"]
    rollout: bool
    """True if the target says how its rollouts end."""
    terms: _Digest
    """Digest of `spec.promoteFrom`, from which this is compiled."""


class PromotionState(Contract):
    """`state.json` of a promotion: what the daemon tells users. No decision depends on it."""

    model_config = ConfigDict(alias_generator=None)
    MAX_BYTES = 32 * 1024
    phase: Literal["current", "waiting", "soaking", "rolling", "proposed", "held"] = absent("waiting")
    message: _MaybeText = absent("")
    since: UnixTime = absent(0.0)
    """Begin of the phase; while `soaking`, since when the source is healthy."""
    source: _MaybeText = absent("")
    """Values that the source's spec has, for people."""
    target: _MaybeText = absent("")
    url: _MaybeText = absent("")
    """Pull request."""


class PipelineState(Contract):
    """`state.json`: the state of a pipeline, as a daemon writes it down. Times are Unix seconds."""

    model_config = ConfigDict(alias_generator=None)
    MAX_BYTES = _MAX_BYTES
    phase: Phase = absent("idle")
    run: Annotated[int, Field(ge=0, lt=10**11)] = absent(0)
    """Number of the active or last run."""
    begun: UnixTime = absent(0.0)
    since: UnixTime = absent(0.0)
    """Begin of the phase."""
    handled: _MaybeText = absent("")
    """The last cause for which a run began, or was skipped."""
    primed: bool = absent(False)
    """True if `handled` is known: what was there before the pipeline is no cause."""
    queued: _MaybeText = absent("")
    """The cause that waits for the end of the active run."""
    commit: _MaybeText = absent("")
    """Commit of the specs at the begin of the run."""
    origin: SpecOrigin = absent(SpecOrigin())
    """Origin from the specs at the begin of the run."""
    ran: _Ran = absent({})
    output: _MaybeText = absent("")
    """Path of the copied model below the directory of the running job."""
    rejected: _MaybeText = absent("")
    """Output that was rejected last, and the digest of the terms of its validation: `DIGEST OUTPUT`."""
    metrics: Mapping[_MaybeText, float] = absent({})
    before: _MaybeText = absent("")
    """URL that was served before the deployment."""
    before_version: _MaybeText = absent("")
    """Its version in the specs."""
    known: Annotated[Mapping[_MaybeText, Mapping[_MaybeText, float]], Field(max_length=MAX_KNOWN)] = absent({})
    """Metrics of published versions, by URL."""
    reason: _MaybeText = absent("")
    message: _MaybeText = absent("")
