"""The pods of a training job: container, environment, volumes."""

from __future__ import annotations

from math import ceil

from avactl.contracts import names
from avactl.contracts.pod_annotations import (
    CHECKPOINT_EVERY,
    DEFAULT_CONTAINER,
    GANG_SIZE,
    PREEMPTIBLE,
    SPOT_FROM,
    WITHIN,
)
from avactl.kinds.team.buckets import team_bucket, written_through
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.kinds.training import followers, job_master, mpi
from avactl.kinds.training.addressing import (
    listens_on_rendezvous,
    pod_environment,
    rendezvous_port,
    starts_with_torchrun,
    with_index,
)
from avactl.kinds.training.commands import with_mpirun, with_torchrun
from avactl.kinds.training.init_containers import health_check, workspace_code
from avactl.kinds.training.roles import (
    CHECKPOINT_ROLES,
    DATA_ROLES,
    MASTER,
    RolePods,
    declared_roles,
    job_name,
    leading_jobs,
    rendezvous_name,
    spot_from,
    whole_compute,
    worker_bounds,
)
from avactl.kinds.training.spec import Checkpoint, TrainingJobSpec
from avactl.kinds.training.starts.dependencies import dependency_annotation
from avactl.program.checks.dataset_start import data_locality, start_when_warm
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.gpu_request import gpu_annotations, share_env
from avactl.program.lowering.host_network import with_host_network
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds

CHECKPOINTS = "/checkpoint"
"""Mount path of a checkpoint volume."""
GRACE_WITH_CHECKPOINT = 120
"""Seconds between SIGTERM and SIGKILL for jobs that save state when stopped; Kubernetes' default is 30."""

SPOT_FIRST: Body = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": names.CAPACITY, "operator": "In", "values": [names.SPOT]}]},
            }
        ]
    }
}
"""Affinity of workers that run on spot machines if there are any free."""


def build_template(item: Item[TrainingJobSpec], program: Program, made: list[RolePods], part: RolePods) -> Body:
    """Build the pod template of one role, without the digest of its run."""
    spec = item.spec
    gpu = gpu_request(item, program, part)
    leading = leading_jobs(item, made)
    settings = part.settings(spec)
    pod = pods.pod_spec(
        item,
        program,
        _build_container(item, program, made, part, gpu),
        volumes=_make_volumes(item, program, part),
        gpu=gpu,
        service_account=RUN_ACCOUNT,
        priority=f"avactl-{spec.priority}",
        settings=settings,
        settings_at=(("spec", "pod"), *((*path, "pod") for path, role in declared_roles(spec) if role is part.compute)),
        **drop_none(
            restartPolicy="Never",
            affinity=SPOT_FIRST if part.role == "worker" and spot_from(spec) and gpu.on_spot else None,
            # The first process of a PID namespace ignores SIGTERM unless it has a handler: pods that are preempted
            # would hold their GPUs for the whole grace period. Not where another container has a token: the program
            # has the same user, and would read it in /proc.
            shareProcessNamespace=True if part.leads and part.role != "launcher" and len(leading) == 1 else None,
            subdomain=rendezvous_name(item) if spec.strategy != "single" else None,
            # Servers stay while the leader saves; other followers save nothing and end immediately.
            terminationGracePeriodSeconds=GRACE_WITH_CHECKPOINT
            if spec.checkpoint and (part.role == "server" or (part.leads and part.role in DATA_ROLES))
            else None,
        ),
    )
    notes = {DEFAULT_CONTAINER.name: part.role, **pods.member_annotation(item)}
    if part.role == "worker" and spec.health_check is not None:
        pod = health_check.with_health_check(item, program, part, pod, spec.health_check)
    if part.role == "launcher":
        pod = mpi.build_launcher(item, program, pod)
    elif not part.leads:
        pod = followers.build_follower(
            item,
            program,
            pod,
            leading,
            part,
            sum(other.replicas for other in made if not other.leads),
            grace=followers.EVALUATOR_GRACE if part.role == "evaluator" else 0,
            linger=max(0, pod["terminationGracePeriodSeconds"] - 10)
            if spec.checkpoint and part.role == "server"
            else 0,
            commands=mpi.commands_name(item) if spec.strategy == "mpi" else "",
        )
        if part.role == MASTER:
            pod = job_master.with_token(pod)
    elif len(leading) > 1:
        watchers = sum(other.replicas for other in made)
        pod = followers.watch_partners(item, program, pod, job_name(item, part.name), leading, watchers)
    if spec.host_network is not None:
        pod = with_host_network(pod, rendezvous_port(item) if listens_on_rendezvous(spec, part) else None)
    labels = k8s.object_labels(item, part.role)
    if settings is not None:
        account = pod["serviceAccountName"] if settings.service_account_name is None else settings.service_account_name
        pod = {**pod, "serviceAccountName": account}
        if settings.dns_policy is not None:
            pod["dnsPolicy"] = settings.dns_policy
        labels = {**settings.labels, **labels}
        notes = {**settings.annotations, **notes}
    pod = pods.as_user(pod)
    if spec.strategy != "single":
        # Also for a single pod: the rendezvous Service selects by it.
        labels[names.GANG_LABEL] = item.name
        notes[GANG_SIZE.name] = str(gang_size(spec, made))
        if spec.workers.within:
            notes[WITHIN.name] = spec.workers.within
    notes |= start_when_warm(item, program)
    notes |= dependency_annotation(item, program)
    if part.role in DATA_ROLES:
        notes |= data_locality(item, program)
    if not spec.preemptible:
        notes[PREEMPTIBLE.name] = "false"
    if spec.checkpoint is not None and part.role in DATA_ROLES:
        notes[CHECKPOINT_EVERY.name] = str(ceil(duration_seconds(spec.checkpoint.every)))
    if part.role == "worker" and spot_from(spec):
        notes[SPOT_FROM.name] = str(spot_from(spec))
    notes |= gpu_annotations(part.compute)
    return {"metadata": {"labels": labels, "annotations": notes}, "spec": pod}


def gpu_request(item: Item[TrainingJobSpec], program: Program, part: RolePods) -> pods.GpuRequest:
    """Return how the pods of one role get their GPUs."""
    return pods.GpuRequest(item, program, whole_compute(item.spec, part.compute), part.name, part.replicas)


def is_gang(made: list[RolePods]) -> bool:
    """Return True if a job has several pods, which then form a gang."""
    return sum(part.replicas for part in made) > 1


def gang_size(spec: TrainingJobSpec, made: list[RolePods]) -> int:
    """Number of pods that must run at the same time."""
    least, most = worker_bounds(spec)
    return sum(part.replicas for part in made) - (most - least)


def _build_container(
    item: Item[TrainingJobSpec], program: Program, made: list[RolePods], part: RolePods, gpu: pods.GpuRequest
) -> Body:
    spec = item.spec
    if part.role == MASTER:
        return job_master.build_container(item, program, part)
    command, args = part.command, part.args
    if part.role == "worker" and starts_with_torchrun(spec, part):
        command = with_torchrun(command)
    elif part.role == "launcher":
        command = with_mpirun(command, mpi.launcher_command(spec))
    elif spec.strategy == "mpi":
        command, args = ["sh", "-c", mpi.WORKER_SCRIPT], []
    command = with_index(item, part, command)
    compute = part.compute
    return drop_none(
        name=part.role,
        image=spec.image,
        command=command or None,
        args=args or None,
        workingDir=spec.code.directory if spec.code else None,
        env=_build_env(item, program, part, gpu),
        resources=pods.build_resources(compute.cpu, compute.memory, gpu.resources(), gpu.claims),
    )


def _build_env(item: Item[TrainingJobSpec], program: Program, part: RolePods, gpu: pods.GpuRequest) -> list[Body]:
    spec = item.spec
    # Connections that set up RDMA use the pod's own network.
    own = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"} if gpu.rdma and not spec.host_network else {}
    nics = gpu.rdma_nics(program, spec.host_network is not None)
    if nics:
        # `=`: exact names. Machines have more NICs, for storage and management.
        own["NCCL_IB_HCA"] = f"={','.join(nics)}"
    result = [pods.env_list(own | share_env(part.compute)), pod_environment(item, part)]
    if part.role == "launcher":
        result.append(mpi.launcher_environment(item))
    if spec.checkpoint is not None:
        result.append(_checkpoint_env(item, program, spec.checkpoint, mounted=part.role in CHECKPOINT_ROLES))
    result.append(_store_env(item, program))
    return pods.merge_env(*result, pods.env_list(spec.env))


def _checkpoint_env(
    item: Item[TrainingJobSpec], program: Program, checkpoint: Checkpoint, *, mounted: bool
) -> list[Body]:
    env = {
        "AVACTL_CHECKPOINT_PATH": checkpoint.path or CHECKPOINTS,
        "AVACTL_CHECKPOINT_EVERY": str(ceil(duration_seconds(checkpoint.every))),
        "AVACTL_CHECKPOINT_KEEP": str(checkpoint.keep),
    }
    if not mounted:
        return pods.env_list(env)
    if checkpoint.path is None:
        env["AVACTL_CHECKPOINT_DIR"] = CHECKPOINTS
    elif (through := written_through(program, item, checkpoint.path)) is not None:
        env["AVACTL_CHECKPOINT_DIR"] = through[1]
    return pods.env_list(env)


def _store_env(item: Item[TrainingJobSpec], program: Program) -> list[Body]:
    """Credentials of the bucket for checkpoints or logs, by reference."""
    spec = item.spec
    checkpoint = spec.checkpoint.path if spec.checkpoint else None
    logs = spec.tensorboard.logdir if spec.tensorboard else ""
    return store_env(item, program, checkpoint or logs)


def store_env(item: Item, program: Program, url: str) -> list[Body]:
    """S3 client variables, from the Secret of the team bucket that contains `url`."""
    bucket = team_bucket(program, item, url) if "://" in url else None
    if bucket is None or bucket.secret is None:
        return []
    keys = {
        "AWS_ACCESS_KEY_ID": "accessKeyId",
        "AWS_SECRET_ACCESS_KEY": "secretAccessKey",
        "AWS_ENDPOINT_URL": "endpoint",
    }
    return pods.secret_env(bucket.secret, keys)


def _make_volumes(item: Item[TrainingJobSpec], program: Program, part: RolePods) -> pods.PodVolumes:
    spec = item.spec
    volumes = pods.PodVolumes(item, program)
    if part.role == MASTER:
        volumes.empty("state", job_master.STATE)
        return volumes
    if part.compute.shared_memory:
        volumes.empty("shared-memory", "/dev/shm", size=part.compute.shared_memory, memory=True)  # noqa: S108
    if spec.strategy == "mpi" and part.role in ("launcher", "worker"):
        mpi.mount_files(volumes, rendezvous_name(item), launcher=part.role == "launcher")
    if spec.code is not None and spec.code.git is not None:
        volumes.code(spec.code.git)
    elif spec.code is not None and spec.code.workspace is not None:
        workspace_code.mount_code(volumes, spec.code.workspace)
    if part.role in CHECKPOINT_ROLES:
        volumes.buckets()
        if spec.checkpoint is not None and spec.checkpoint.volume is not None:
            volumes.claim("checkpoint", f"{item.name}-checkpoint", CHECKPOINTS)
    if part.role in DATA_ROLES:
        volumes.datasets(spec.datasets)
        logs = log_path(spec)
        if logs is not None:
            volumes.claim("logs", f"{item.name}-logs", logs)
    return volumes


def log_path(spec: TrainingJobSpec) -> str | None:
    """Mount path of the log volume in workers; None if there is none."""
    board = spec.tensorboard
    if board is None or "://" in board.logdir:
        return None
    return spec.log_volume or board.logdir
