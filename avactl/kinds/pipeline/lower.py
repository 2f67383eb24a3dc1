"""Pipeline → templates of Jobs (suspended CronJobs), the objects beside its training, and the plan for the daemon.

The plan is in the system namespace, where members of the team cannot write: the daemon commits by it. The templates are
in the team's namespace, and decide only what the team's own pods do.
"""

from __future__ import annotations

from math import ceil

from avactl.contracts.delivery import (
    PLAN_KEY,
    REPORT_KEY,
    CodeOrigin,
    DeployPlan,
    MetricBound,
    PipelinePlan,
    PublishPlan,
    ReportPlan,
    SpecOrigin,
    TrainPlan,
    TriggerPlan,
    ValidationPlan,
    ValuePaths,
)
from avactl.contracts.document import dump
from avactl.contracts.names import (
    CONFIG_LABEL,
    DELIVERY_DAEMON,
    PIPELINE_CONFIG,
    PIPELINE_STATE,
    PIPELINE_STATE_PREFIX,
    PIPELINE_STEP,
    ROLLOUT_REPORT,
)
from avactl.kinds.pipeline.service import deployed_model, live_urls, service_of, value_paths
from avactl.kinds.pipeline.spec import Metric, PipelineSpec
from avactl.kinds.pipeline.steps import SEAL, STAGE, VALIDATE, step_name, step_objects, versions_directory
from avactl.kinds.pipeline.training import running_jobs, training_job, training_objects
from avactl.kinds.pipeline.workload import mount_lists
from avactl.kinds.serving.rollout.lower import chosen_strategy
from avactl.program import dataset_access
from avactl.program.lowering import k8s
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds

STATE = Owned("ConfigMap", ("data",), "the delivery daemon, in the ConfigMap `pipeline-state.NAMESPACE.NAME`")
_RULES = [
    # Templates, and the Jobs of runs.
    k8s.policy_rule(["batch"], ["cronjobs"], ["get"]),
    k8s.policy_rule(["batch"], ["jobs"], ["list", "create", "delete"]),
    # Messages of pods (metrics, reasons of failures), and their images and commits.
    k8s.policy_rule([""], ["pods"], ["list"]),
]
_ROLLOUT_RULES = [
    # How the rollout of a deployed version goes.
    k8s.policy_rule(["apps"], ["deployments"], ["get"]),
    k8s.policy_rule(["apps"], ["replicasets"], ["list"]),
]
_EVENT_RULES = [
    # Begin and end of runs.
    k8s.policy_rule(["events.k8s.io"], ["events"], ["create", "patch"]),
]


def lower(item: Item[PipelineSpec], program: Program) -> list[Manifest]:
    """Return the objects of one pipeline."""
    training = training_objects(item, program)
    jobs = [each.name for each in training if PIPELINE_STEP in each.body["metadata"].get("annotations", {})]
    steps = step_objects(item, program)
    deploy = _deploy(item, program)
    plan = _build_plan(item, program, jobs, steps, deploy)
    return [*training, *steps, plan, *_build_state(item, program), *_build_report(item, program, deploy)]


def _build_state(item: Item[PipelineSpec], program: Program) -> list[Manifest]:
    """Return the ConfigMap that the daemon writes, and its rights: that one, and the Jobs of this namespace.

    Without it, numbers of versions would begin anew: it outlives the pipeline.
    """
    system, name = program.cluster_spec(item.cluster).system_namespace, f"{PIPELINE_STATE_PREFIX}{item.ns}.{item.name}"

    service = service_of(item, program)
    follows = service is not None and service.cluster == item.cluster

    def rights(role: str, namespace: str, rules: list[Body]) -> list[Manifest]:
        daemon = account_subject(DELIVERY_DAEMON, system)
        return build_role(item, item.cluster, role, namespace, rules, [daemon], "delivery")

    state = k8s.build_manifest(
        item,
        item.cluster,
        "v1",
        "ConfigMap",
        name,
        namespace=system,
        component="state",
        owned=(STATE.field,),
        holds_data=True,
        extra_labels={CONFIG_LABEL: PIPELINE_STATE},
    )
    return [
        state,
        *rights(name, system, [k8s.policy_rule([""], ["configmaps"], ["patch"], resourceNames=[name])]),
        *rights(f"{item.name}-delivery", item.ns, [*_RULES, *(_ROLLOUT_RULES if follows else ()), *_EVENT_RULES]),
    ]


def _build_plan(
    item: Item[PipelineSpec], program: Program, jobs: list[str], steps: list[Manifest], deploy: DeployPlan | None
) -> Manifest:
    """Return the ConfigMap that the delivery daemon reads."""
    spec, job = item.spec, training_job(item, program)
    validation = next(each for each in steps if each.name == step_name(item, VALIDATE) and each.kind == "CronJob")
    document = PipelinePlan(
        name=item.spec_name,
        team=str(item.team),
        namespace=str(item.ns),
        trigger=_build_trigger(item, program),
        train=TrainPlan(jobs=tuple(jobs), running_jobs=() if job is None else tuple(running_jobs(job))),
        stage=step_name(item, STAGE),
        validation=ValidationPlan(
            job=validation.name,
            metrics=tuple(build_metric_bound(each) for each in spec.validation.metrics),
            digest=k8s.short_digest(validation.body),
        ),
        seal=step_name(item, SEAL),
        publish=PublishPlan(
            to=versions_directory(item), keep=spec.publish.keep, declared=tuple(live_urls(item, program))
        ),
        deploy=deploy,
        concurrency=spec.concurrency,
        timeout=None if spec.timeout is None else ceil(duration_seconds(spec.timeout)),
        retries=spec.retries,
        suspended=spec.suspended,
        lineage=_build_lineage(item, program),
    )
    return k8s.config_map(
        item,
        item.cluster,
        f"pipeline.{item.ns}.{item.name}",
        program.cluster_spec(item.cluster).system_namespace,
        {PLAN_KEY: dump(document, indent=True)},
        component="plan",
        extra_labels={CONFIG_LABEL: PIPELINE_CONFIG},
    )


def _build_trigger(item: Item[PipelineSpec], program: Program) -> TriggerPlan:
    spec = item.spec.trigger
    if spec.schedule is not None:
        return TriggerPlan(kind="schedule", cron=spec.schedule.cron, time_zone=spec.schedule.time_zone)
    if spec.commit is not None:
        return TriggerPlan(kind="commit", paths=tuple(spec.commit.paths))
    if spec.checkpoint is not None:
        return TriggerPlan(kind="checkpoint", every=ceil(duration_seconds(spec.checkpoint.every)))
    assert spec.dataset is not None  # a trigger has exactly one key
    dataset = dataset_access.find(program, item.team, spec.dataset.name)
    assert dataset is not None
    return TriggerPlan(kind="dataset", dataset=spec.dataset.name, version=dataset.spec.versions[-1].name)


def build_metric_bound(metric: Metric) -> MetricBound:
    """Return the bounds of a metric as the validation compares them."""
    live = metric.vs_live
    return MetricBound(
        name=metric.name,
        min=metric.min,
        max=metric.max,
        at_least=None if live is None else live.at_least,
        at_most=None if live is None else live.at_most,
    )


def _deploy(item: Item[PipelineSpec], program: Program) -> DeployPlan | None:
    deploy, service = item.spec.deploy, service_of(item, program)
    found = deployed_model(deploy, service) if deploy is not None and service is not None else None
    if deploy is None or service is None or found is None:
        return None
    return DeployPlan(
        by=deploy.by,
        service=service.name,
        namespace=service.ns,
        model=found[1].name,
        url=found[1].url,
        file=service.doc.file,
        document=service.spec_name,
        paths=ValuePaths(**value_paths(*found)),
        rollout=chosen_strategy(service.spec) is not None,
        cluster=None if service.cluster == item.cluster else service.cluster,
    )


def _build_report(item: Item[PipelineSpec], program: Program, deploy: DeployPlan | None) -> list[Manifest]:
    """Return the ConfigMap that lets the service's cluster record in git how rollouts end; none on the same cluster."""
    if deploy is None or deploy.cluster is None or not deploy.rollout:
        return []
    document = ReportPlan(
        cluster=deploy.cluster, namespace=deploy.namespace, service=deploy.service, model=deploy.model
    )
    return [
        k8s.config_map(
            item,
            deploy.cluster,
            f"rollout-report.{deploy.namespace}.{item.name}",
            program.cluster_spec(deploy.cluster).system_namespace,
            {REPORT_KEY: dump(document, indent=True)},
            component="report",
            extra_labels={CONFIG_LABEL: ROLLOUT_REPORT},
        )
    ]


def _build_lineage(item: Item[PipelineSpec], program: Program) -> SpecOrigin:
    """Return what the compiler knows of the origin of a version: data, image, code and parameters."""
    template = item.spec.train.template
    job = training_job(item, program)
    source = template if template is not None else job.spec if job is not None else None
    data = {}
    for found in (*(found for _, found in mount_lists(item)), [] if job is None else job.spec.datasets):
        for mount in found:
            dataset = dataset_access.find(program, item.team, mount.name)
            version = None if dataset is None else dataset_access.version_of(dataset, mount.version)
            if version is not None:
                data[mount.name] = version.name
    code = None if source is None or source.code is None or source.code.git is None else source.code.git
    return SpecOrigin(
        job=None if job is None else job.spec_name,
        datasets=data,
        image=None if source is None else source.image,
        command=None if source is None else (*source.command, *source.args),
        parameters=None
        if source is None
        else {name: value for name, value in source.env.items() if isinstance(value, str)},
        code=None if code is None else CodeOrigin(url=code.url, ref=code.ref),
    )
