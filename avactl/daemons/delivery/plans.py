"""Plans and states of pipelines, in the daemon's terms."""

from __future__ import annotations

from typing import NamedTuple

from avactl.contracts.delivery import DeployPlan, PipelinePlan, PipelineState, SpecOrigin, TriggerPlan
from avactl.contracts.document import DocumentError, load
from avactl.daemons.delivery.decide import PipelineConfig


class PipelineTarget(NamedTuple):
    """Where a deployment writes, and what it deploys to."""

    namespace: str
    service: str
    """Name of the Deployment, LeaderWorkerSet or DisaggregatedSet."""
    model: str
    file: str
    """YAML file of the service, from the root of the specs."""
    document: str
    """Name of the service in that file."""
    team: str
    url_path: str
    version_path: str
    cluster: str = ""
    """Cluster of the service if it is another one; "" otherwise."""


class DeliveredPipeline(NamedTuple):
    """The plan of one pipeline."""

    name: str
    team: str
    namespace: str
    trigger: TriggerPlan
    train: tuple[str, ...]
    """Templates of the training's Jobs."""
    running: tuple[str, ...]
    """Running Jobs that train without end, in a pipeline without templates."""
    stage: str
    validate: str
    seal: str
    declared: tuple[str, ...]
    """URLs below its directory that services declare."""
    target: PipelineTarget | None
    lineage: SpecOrigin
    config: PipelineConfig

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"


def read_plan(text: object) -> DeliveredPipeline:
    """Parse the document `pipeline.json`. Raises DocumentError."""
    try:
        plan = load(PipelinePlan, text)
    except DocumentError as error:
        raise DocumentError(f"invalid plan: {error}") from None
    return DeliveredPipeline(
        name=plan.name,
        team=plan.team,
        namespace=plan.namespace,
        trigger=plan.trigger,
        train=plan.train.jobs,
        running=plan.train.running_jobs,
        stage=plan.stage,
        validate=plan.validation.job,
        seal=plan.seal,
        declared=plan.publish.declared,
        target=None if plan.deploy is None else _target(plan.deploy, plan.team),
        lineage=plan.lineage,
        config=_config(plan),
    )


def read_state(text: object) -> PipelineState:
    """Parse a state. Raises DocumentError: a pipeline whose state was damaged does not begin anew by itself."""
    if not text:
        return PipelineState()
    try:
        return load(PipelineState, text)
    except DocumentError as error:
        raise DocumentError(f"invalid state: {error}") from None


def _config(plan: PipelinePlan) -> PipelineConfig:
    return PipelineConfig(
        to=plan.publish.to,
        trains=bool(plan.train.jobs),
        bounds=plan.validation.metrics,
        deploys="" if plan.deploy is None else plan.deploy.by,
        rollout=plan.deploy is not None and plan.deploy.rollout,
        concurrency=plan.concurrency,
        timeout=plan.timeout,
        suspended=plan.suspended,
        cluster="" if plan.deploy is None else plan.deploy.cluster or "",
        validation=plan.validation.digest,
    )


def _target(deploy: DeployPlan, team: str) -> PipelineTarget:
    return PipelineTarget(
        namespace=deploy.namespace,
        service=deploy.service,
        model=deploy.model,
        file=deploy.file,
        document=deploy.document,
        team=team,
        url_path=deploy.paths.url,
        version_path=deploy.paths.version,
        cluster=deploy.cluster or "",
    )
