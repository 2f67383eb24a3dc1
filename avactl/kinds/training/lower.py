"""TrainingJob → indexed Jobs, headless Service, rendezvous ConfigMap, disruption budget, RBAC, volumes, TensorBoard."""

from __future__ import annotations

from math import ceil

from avactl.contracts import names
from avactl.contracts.pod_annotations import RUN_DIGEST, TIMEOUT
from avactl.kinds.team.names import team_namespaces
from avactl.kinds.training import followers, job_master, mpi
from avactl.kinds.training.addressing import master_port, rendezvous_data, rendezvous_port
from avactl.kinds.training.init_containers import health_check
from avactl.kinds.training.pod import build_template, gang_size, gpu_request, is_gang
from avactl.kinds.training.roles import (
    CHECKPOINT_ROLES,
    MASTER,
    RolePods,
    has_master,
    job_name,
    job_parts,
    leading_jobs,
    pods_with,
    rendezvous_name,
    service_accounts,
    spot_from,
    straggler_replacement,
    worker_bounds,
)
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.kinds.training.starts.schedule import cron_job
from avactl.kinds.training.tensorboard import build_tensorboard
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.monitoring import of_component
from avactl.program.lowering.networks import admit_namespaces, admit_pods, build_ingress_policy
from avactl.program.lowering.notifications import build_notifications
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.program.workload import FOLLOWERS_LATER
from avactl.spec.schema.reconcile_modes import STARTS_JOBS_AGAIN
from avactl.spec.schema.values import duration_seconds

TIMED_OUT_LATER = 30
"""Seconds for the scheduler to mark a pod that has run for its timeout, before the kubelet ends it."""


def lower(item: Item[TrainingJobSpec], program: Program) -> list[Manifest]:
    """Return the objects of one training job."""
    spec = item.spec
    made = job_parts(spec)
    data = rendezvous_data(item, made)
    if spec.strategy == "mpi":
        data |= mpi.rendezvous_files(item)
    bodies = [_build_job(item, program, made, part) for part in made]
    run = k8s.short_digest([data, bodies])
    jobs = [_finish_job(item, program, part, body, run) for part, body in zip(made, bodies, strict=True)]
    objects = _build_claims(item, program, made)
    if data:
        objects.append(k8s.config_map(item, item.cluster, rendezvous_name(item), item.ns, data))
    if spec.strategy != "single":
        objects += _build_services(item)
    if (is_gang(made) or not spec.preemptible) and (spec.spot == "never" or spot_from(spec)):
        # A budget would also keep the notice of a spot machine's end from the pods.
        objects.append(_build_budget(item, made))
    if spec.strategy == "mpi":
        objects += mpi.build_commands_objects(item, service_accounts(spec, made))
    leading = leading_jobs(item, made)
    if any(not part.leads for part in made) or len(leading) > 1:
        commands = mpi.commands_name(item) if spec.strategy == "mpi" else ""
        more = job_master.master_rules(item) if has_master(spec) else []
        objects += followers.follower_access(item, leading, commands, more, service_accounts(spec, made))
        if has_master(spec):
            objects.append(job_master.build_state(item))
            if spec.host_network is None:
                objects += of_component(item, program, MASTER, job_master.HTTP_PORT)
    objects += _build_network(item, program, made)
    objects += build_tensorboard(item, program)
    objects += build_notifications(item, program, jobs=leading)
    return [*objects, *jobs]


def _build_job(item: Item[TrainingJobSpec], program: Program, made: list[RolePods], part: RolePods) -> Body:
    """Return the immutable fields of a Job's spec: a change starts a new run."""
    spec = item.spec
    least, most = worker_bounds(spec)
    rules: list[Body] = [
        # Preemption, drains and lost nodes do not count as failures of the job.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    if part.role == "worker" and straggler_replacement(spec):
        # The worker has left because it was slow: its index gets another pod, and no retry is spent.
        slow = {"containerName": part.role, "operator": "In", "values": [names.REPLACED_EXIT]}
        rules.append({"action": "Ignore", "onExitCodes": slow})
    if part.role == "worker" and spec.health_check is not None:
        rules[:0] = health_check.failure_rules()
    if not part.leads:
        codes = [followers.FAILED, followers.GAVE_UP]
        failed = {"containerName": names.FOLLOWER, "operator": "In", "values": codes}
        rules.insert(0, {"action": "FailJob", "onExitCodes": failed})
    if spec.code is not None and part.role != MASTER:
        missing = {"containerName": pods.CODE, "operator": "In", "values": [pods.MISSING_REVISION]}
        rules.insert(0, {"action": "FailJob", "onExitCodes": missing})
    pod = build_template(item, program, made, part)
    if part.leads and (longest := _running_time(item, program)) is not None:
        pod["metadata"]["annotations"][TIMEOUT.name] = str(longest)
        pod["spec"]["activeDeadlineSeconds"] = longest + TIMED_OUT_LATER
        timed_out = [{"type": names.TIMED_OUT, "status": "True"}]
        rules.insert(0, {"action": "FailJob", "onPodConditions": timed_out})
    return drop_none(
        completionMode="Indexed",
        completions=part.replicas,
        # A failed pod takes its gang with it, and each pod fails once: so `retries` applies per index.
        backoffLimitPerIndex=spec.retries,
        # Elastic: the job continues with the remaining pods, and ends when the first pod, the leader, has ended.
        successPolicy={"rules": [{"succeededIndexes": "0"}]} if spec.strategy == "elastic" else None,
        maxFailedIndexes=most - least if part.role == "worker" else 0,
        podFailurePolicy={"rules": rules},
        template=pod,
    )


def _finish_job(item: Item[TrainingJobSpec], program: Program, part: RolePods, body: Body, run: str) -> Manifest:
    """Build the Job, with the digest of its run and the mutable fields."""
    spec = item.spec
    # In the template too: Kubernetes then rejects mixing pods of the old run with those of the new.
    body["template"]["metadata"]["annotations"][RUN_DIGEST.name] = run
    body.update(
        drop_none(
            parallelism=part.replicas,
            podReplacementPolicy="Failed",
            activeDeadlineSeconds=_job_deadline(item, program, part),
            ttlSecondsAfterFinished=_job_ttl(item, program) if spec.schedule is None else None,
            suspend=True if spec.suspended and spec.schedule is None else None,
        )
    )
    if spec.schedule is not None:
        metadata = {"labels": k8s.object_labels(item, part.role), "annotations": {RUN_DIGEST.name: run}}
        return k8s.build_manifest(
            item,
            item.cluster,
            "batch/v1",
            "CronJob",
            job_name(item, part.name),
            namespace=item.ns,
            component=part.role,
            spec=cron_job(spec.schedule, body, metadata, spec.suspended),
        )
    notes = {RUN_DIGEST.name: run}
    if spec.on_change == "finish":
        notes[names.ON_CHANGE] = "finish"
    return k8s.build_manifest(
        item,
        item.cluster,
        "batch/v1",
        "Job",
        job_name(item, part.name),
        namespace=item.ns,
        component=part.role,
        annotations=notes,
        spec=body,
    )


def _parse_seconds(duration: str | None) -> int | None:
    return None if duration is None else ceil(duration_seconds(duration))


def _running_time(item: Item[TrainingJobSpec], program: Program) -> int | None:
    """Seconds that a pod may run, if avactl's scheduler counts them."""
    return _parse_seconds(item.spec.timeout) if program.cluster_spec(item.cluster).daemons.scheduler else None


def _job_deadline(item: Item[TrainingJobSpec], program: Program, part: RolePods) -> int | None:
    """Deadline of the Job, which counts from its creation: only for clusters without avactl's scheduler.

    Followers end by themselves, except if their sidecar never started: they get a later one.
    """
    longest = _parse_seconds(item.spec.timeout)
    if longest is None or _running_time(item, program) is not None:
        return None
    return longest if part.leads else longest + FOLLOWERS_LATER


def _job_ttl(item: Item[TrainingJobSpec], program: Program) -> int | None:
    """Return the Job's TTL. An engine that follows the repository would recreate a deleted Job."""
    cluster = program.cluster_spec(item.cluster)
    if cluster.reconcile.mode in STARTS_JOBS_AGAIN:
        return None
    return _parse_seconds(item.spec.ttl or cluster.default_job_ttl)


def _build_services(item: Item[TrainingJobSpec]) -> list[Manifest]:
    """Build the headless Service. It publishes pods before they are ready, because readiness requires discovery."""
    # mpirun's daemons choose their own ports: for them the Service only gives names.
    name, ports = rendezvous_name(item), {} if item.spec.strategy == "mpi" else {"rendezvous": rendezvous_port(item)}
    if item.spec.strategy == "elastic":
        ports = {}  # workers choose theirs, and tell the master
    if has_master(item.spec) and master_port(item) not in ports.values():
        ports[MASTER] = master_port(item)
    everyone = {names.GANG_LABEL: item.name}
    return [
        k8s.build_service(item, item.cluster, name, item.ns, everyone, ports, headless=True, publish_not_ready=True)
    ]


def _build_network(item: Item[TrainingJobSpec], program: Program, made: list[RolePods]) -> list[Manifest]:
    """Return the NetworkPolicy of the pods; none in the network of machines, and for a pod that nobody connects to.

    Frameworks trust who connects, so the pods accept each other alone. Only sidecars declare ports that are for others.
    """
    spec = item.spec
    settings = [part.settings(spec) for part in made]
    sidecars = [sidecar for each in settings if each is not None for sidecar in each.sidecars]
    ports = {(port.container_port, port.protocol) for sidecar in sidecars for port in sidecar.ports}
    gang = {names.GANG_LABEL: item.name}
    rules = [admit_pods(gang)] if spec.strategy != "single" else []
    if ports:
        rules.append(admit_namespaces(team_namespaces(program.team(str(item.team))), sorted(ports)))
    if spec.host_network is not None or not rules:
        return []
    select = gang if spec.strategy != "single" else k8s.component_selector(item, made[0].role)
    return [build_ingress_policy(item, rendezvous_name(item), item.ns, select, rules)]


def _build_budget(item: Item[TrainingJobSpec], made: list[RolePods]) -> Manifest:
    """Build the PodDisruptionBudget that blocks evictions (drains, autoscalers): losing one pod stops the whole gang.

    `minAvailable`, because Kubernetes evaluates `maxUnavailable` only for controllers with a scale subresource.
    """
    select = {names.GANG_LABEL: item.name} if is_gang(made) else k8s.component_selector(item, made[0].role)
    return k8s.disruption_budget(
        item,
        item.cluster,
        item.name,
        item.ns,
        select,
        component="gang",
        minAvailable=gang_size(item.spec, made),
        unhealthyPodEvictionPolicy="AlwaysAllow",
    )


def _build_claims(item: Item[TrainingJobSpec], program: Program, made: list[RolePods]) -> list[Manifest]:
    """Return the GPU claims of the roles, and the checkpoint volume."""
    found = [
        manifest for part in made if part.compute.gpus for manifest in gpu_request(item, program, part).claim(item.ns)
    ]
    checkpoint = item.spec.checkpoint
    if checkpoint is not None and checkpoint.volume is not None:
        found.append(
            k8s.volume_claim(
                item,
                program,
                item.cluster,
                f"{item.name}-checkpoint",
                item.ns,
                checkpoint.volume,
                use="checkpoint",
                keep=checkpoint.deletion_policy != "delete",
                component="checkpoint",
                mode="ReadWriteMany" if pods_with(made, CHECKPOINT_ROLES) > 1 else "ReadWriteOnce",
            )
        )
    return found
