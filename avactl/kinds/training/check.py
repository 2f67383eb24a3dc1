"""Checks of a training job: its strategy and roles, then its requirements on cluster and team."""

from __future__ import annotations

import re
from collections.abc import Iterator

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.suggest import closest_word, one_of
from avactl.kinds.team.buckets import bucket_problems
from avactl.kinds.training.addressing import (
    listens_on_rendezvous,
    mpi_implementation,
    pod_environment,
    slots_per_worker,
)
from avactl.kinds.training.commands import mpirun_ranks, torchrun_options
from avactl.kinds.training.init_containers.health_check import health_problems
from avactl.kinds.training.init_containers.workspace_code import code_problems
from avactl.kinds.training.mounts import place_problems
from avactl.kinds.training.pod import log_path
from avactl.kinds.training.roles import (
    CHECKPOINT_ROLES,
    RolePods,
    declared_roles,
    has_master,
    job_name,
    job_parts,
    leading_jobs,
    pods_with,
    rendezvous_name,
    settings_of,
    spot_from,
    whole_compute,
    worker_bounds,
)
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.kinds.training.starts.checkpoints import shared_checkpoint_problems
from avactl.kinds.training.starts.dependencies import order_problems
from avactl.kinds.training.starts.schedule import schedule_problems
from avactl.kinds.training.strategies import strategy_problems
from avactl.program.capacity.capacity import gpu_problems, running_roles
from avactl.program.capacity.together import together_problem
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.dataset_start import start_problems
from avactl.program.checks.pod_security_levels import root_problem
from avactl.program.checks.pod_settings import pod_problems
from avactl.program.checks.reserved_env import PREFIX, reserved_env_problems
from avactl.program.checks.spot import notice_problem, spot_problems
from avactl.program.checks.words import variable_problems, word_problems
from avactl.program.dataset_access import mount_problems
from avactl.program.images import require_image
from avactl.program.ineffective_keys import unused_model
from avactl.program.lowering.host_network import host_network_problems
from avactl.program.lowering.notifications import JOB_EVENTS, notify_problems
from avactl.program.lowering.storage import sharing_problems
from avactl.program.program import Item, Program
from avactl.program.workload import WorkloadRole
from avactl.spec.schema.pod_requests import with_pod
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.reconcile_modes import STARTS_JOBS_AGAIN
from avactl.spec.schema.values import duration_seconds

_MAX_TIMEOUT_S = 366 * 24 * 3600
_LONG_RUN_S = 24 * 3600
"""Minimum run time, in seconds, for the warning about a missing checkpoint."""
_FIELDS_OF_VARIABLES = {
    "AVACTL_CHECKPOINT_PATH": "checkpoint.path",
    "AVACTL_CHECKPOINT_EVERY": "checkpoint.every",
    "AVACTL_CHECKPOINT_KEEP": "checkpoint.keep",
    "AVACTL_CONSISTENCY": "consistency",
    "AVACTL_STALENESS": "staleness",
    "AVACTL_BACKUP_WORKERS": "backupWorkers",
    "AVACTL_WORKERS": "workers.replicas",
    "AVACTL_SERVERS": "servers.replicas",
    "AVACTL_WORKER_RANGE": "workers.replicas",
    "JOB_COMPLETION_INDEX": "",
}
"""Fields that set the variables of the pods."""
_SUCCESS_POLICY = 31
"""First Kubernetes minor version (1.31) with `successPolicy` of Jobs on by default."""


def check(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one job."""
    wrong = list(strategy_problems(item))
    yield from wrong
    yield from credential_problems(item, item.spec.env, ("spec", "env"))
    yield from variable_problems(item, item.spec.env, ("spec", "env"))
    yield from reserved_env_problems(item, item.spec.env, ("spec", "env"), _FIELDS_OF_VARIABLES)
    for path, words in _role_commands(item.spec):
        yield from argument_problems(item, words, path)
        yield from word_problems(item, words, path)
    yield from mount_problems(item, program, item.spec.datasets, ("spec", "datasets"))
    yield from start_problems(item, program)
    if item.spec.code is None or (item.spec.code.git is None) != (item.spec.code.workspace is None):
        yield from place_problems(item, program)
    yield from _check_checkpoint(item, program)
    yield from _check_tensorboard(item, program)
    yield from _check_times(item, program)
    unknown = any(problem.severity == "error" for problem in wrong)  # the number of pods per role is unknown
    jobs = (
        [] if unknown or item.spec.schedule is None else [(part.name, part.replicas) for part in job_parts(item.spec)]
    )
    yield from schedule_problems(item, job_name(item, "worker"), jobs)
    yield from order_problems(item, program)
    yield from notify_problems(item, program, JOB_EVENTS)
    yield from code_problems(item, program)
    if unknown:
        return
    made = job_parts(item.spec)
    yield from _check_names(item, made)
    yield from _check_pods(item, program, made)
    yield from _check_variables(item, made)
    yield from _check_torchrun(item, made)
    yield from _check_mpirun(item, made)
    yield from _check_shares(item, made)
    yield from _check_compute(item, program)
    yield from _check_spot(item, program)
    yield from _check_within(item, program)
    if item.spec.host_network is not None:
        yield from host_network_problems(item, program, _listening_roles(item, made))
    yield from _shared_volumes(item, program, made)
    yield from _check_cluster(item, program, made)
    yield from health_problems(item, program)


def _check_shares(item: Item[TrainingJobSpec], made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield parts of GPUs for workers that cannot share a GPU with each other."""
    spec = item.spec
    shares = [compute for compute in (spec.workers, *spec.worker_groups) if compute.shares_gpu]
    if not shares:
        return
    own = spec.workers.shares_gpu
    path = ("spec", "workers") if own else ("spec", "workerGroups")

    def place() -> Span:
        return item.span(*path, "gpus") if own else item.span(*path, key=True)

    workers = sum(part.replicas for part in made if part.role == "worker")
    if spec.strategy in ("allReduce", "mpi") and workers > 1:
        yield Diagnostic(
            "invalid-value",
            f"{'.'.join(path)}: {shares[0].gpus:g} of a GPU for each of {workers} workers: two of them may get the "
            "same GPU, and NCCL refuses that",
            place(),
            hint="request whole GPUs, write `replicas: 1`, or use `elastic` or `parameterServer`",
        )
    if spec.health_check is not None:
        yield Diagnostic(
            "conflicting-keys",
            "the health check takes a GPU that others use for a slow one",
            item.span("spec", "healthCheck", key=True),
            hint="remove `healthCheck`, or request whole GPUs",
            notes=(Note(place(), "a part of a GPU"),),
        )


def _role_commands(spec: TrainingJobSpec) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    yield ("spec", "command"), spec.command
    yield ("spec", "args"), spec.args
    for key, role in (("servers", spec.servers), ("launcher", spec.launcher), ("evaluator", spec.evaluator)):
        if role is not None:
            yield ("spec", key, "command"), role.command
            yield ("spec", key, "args"), role.args


def _check_variables(item: Item[TrainingJobSpec], made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield variables that replace those by which the pods of the job find each other."""
    parts = [part for part in made if len(made) > 1 or part.replicas > 1]
    entries = [each for part in parts for each in pod_environment(item, part)]
    own = {str(each["name"]) for each in entries if re.search(r"\$\(|\.svc$", str(each.get("value", "")))}
    for name in item.spec.env:
        if name in own and name not in _FIELDS_OF_VARIABLES and not name.startswith(PREFIX):
            yield Diagnostic(
                "conflicting-keys",
                f"`{name}` is a variable by which the pods find each other, and has this value in all of them",
                item.span("spec", "env", name, key=True),
                severity="warning",
                hint="remove it: avactl sets it for each pod",
            )


def _check_torchrun(item: Item[TrainingJobSpec], made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield options of torchrun that contradict the number of pods or of their GPUs."""
    spec = item.spec
    if spec.framework != "pytorch" or spec.strategy != "allReduce":
        return
    workers = [part for part in made if part.role == "worker"]
    pods, gpus = sum(part.replicas for part in workers), {part.compute.visible_gpus for part in workers}
    for index, name, value in torchrun_options([*spec.command, *spec.args]):
        wrong = ""
        if name == "--nnodes" and value.isdecimal() and int(value) != pods:
            wrong = f"the job has {pods} worker{'s' if pods > 1 else ''}: torchrun waits for {value}"
        elif name == "--nproc-per-node" and value.isdecimal() and gpus not in ({int(value)}, {0}):
            wrong = f"each worker has {one_of(map(str, gpus)).replace('`', '')} GPUs, for one process each"
        if wrong:
            inside = index < len(spec.command)
            path = ("spec", "command", index) if inside else ("spec", "args", index - len(spec.command))
            yield Diagnostic(
                "conflicting-keys",
                f"`{name} {value[:20]}` contradicts `workers`: {wrong}",
                item.span(*path),
                severity="warning",
                hint=f"remove the option: avactl sets it, as `PET_{name[2:].replace('-', '_').upper()}`",
            )


def _check_mpirun(item: Item[TrainingJobSpec], made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield a number of ranks that is not that of the slots."""
    spec = item.spec
    if spec.strategy != "mpi":
        return
    slots = sum(slots_per_worker(spec, part) * part.replicas for part in made if part.role == "worker")
    own = spec.launcher if spec.launcher is not None and spec.launcher.command else None
    path: tuple[str, ...] = ("spec", "launcher") if own is not None else ("spec",)
    role = spec if own is None else own
    found = mpirun_ranks([*role.command, *role.args])
    if found is None or found[1] == slots:
        return
    index, ranks = found
    more = ranks > slots
    if more and any("oversubscribe" in word.lower() for word in (*role.command, *role.args)):
        return
    inside = index < len(role.command)
    place: tuple[str | int, ...] = (*path, "command", index) if inside else (*path, "args", index - len(role.command))
    refused = more and mpi_implementation(spec) == "openmpi"
    why = "mpirun refuses to start more" if refused else "some share one" if more else "the rest is idle"
    yield Diagnostic(
        "conflicting-keys",
        f"`{(*role.command, *role.args)[index]} {ranks}` contradicts `workers`: the job has {slots} slots, {why}",
        item.span(*place),
        severity="error" if refused else "warning",
        hint="remove the option: mpirun starts one rank per slot; or change `replicas` or `slotsPerWorker`",
    )


def _check_checkpoint(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    checkpoint = spec.checkpoint
    if checkpoint is None:
        long = spec.timeout is not None and duration_seconds(spec.timeout) >= _LONG_RUN_S
        if spec.preemptible and (long or spec.strategy == "elastic"):
            why = "is elastic" if spec.strategy == "elastic" else f"may run for {spec.timeout}"
            yield Diagnostic(
                "no-checkpoint",
                f"{item} {why} and is preemptible, but has no checkpoint to resume from",
                item.span("spec", "strategy" if spec.strategy == "elastic" else "timeout"),
                severity="warning",
                hint="add `checkpoint: {path: s3://…, every: 30m}`, or `preemptible: false`",
            )
        return
    if checkpoint.path is not None and checkpoint.volume is not None:
        yield Diagnostic(
            "conflicting-keys",
            "`path` and `volume` exclude each other",
            item.span("spec", "checkpoint", "volume", key=True),
            hint="keep `path` for an object store, or `volume` for a persistent volume",
            notes=(Note(item.span("spec", "checkpoint", "path", key=True), "`path`"),),
        )
    elif checkpoint.path is None and checkpoint.volume is None:
        yield Diagnostic(
            "missing-key",
            "`spec.checkpoint` needs `path` or `volume`",
            item.span("spec", "checkpoint", key=True),
            hint="add `path: s3://BUCKET/DIRECTORY`, or `volume: 100Gi` for a persistent volume",
        )
    elif checkpoint.path is not None:
        yield from bucket_problems(item, program, checkpoint.path, ("spec", "checkpoint", "path"), writes=True)
        yield from shared_checkpoint_problems(item, program)


def _check_tensorboard(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    board = spec.tensorboard
    if board is None:
        if spec.log_volume is not None:
            yield Diagnostic(
                "wrong-strategy",
                "`logVolume` mounts TensorBoard's log volume, but the job has no `tensorboard`",
                item.span("spec", "logVolume", key=True),
                hint="add `tensorboard: {logdir: /logs}`, or remove the key",
            )
        return
    yield from require_image(item, program, "tensorboard", ("spec", "tensorboard"))
    if "://" in board.logdir:
        if spec.log_volume is not None:
            yield Diagnostic(
                "conflicting-keys",
                f"TensorBoard reads from `{board.logdir}`, so there is no log volume to mount",
                item.span("spec", "logVolume", key=True),
                hint="remove `logVolume`, or set `logdir` to a path",
                notes=(Note(item.span("spec", "tensorboard", "logdir"), "object store"),),
            )
        yield from bucket_problems(item, program, board.logdir, ("spec", "tensorboard", "logdir"), writes=True)


def _check_times(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    for path, value in ((("timeout",), spec.timeout), (("ttl",), spec.ttl)):
        if value is not None and duration_seconds(value) > _MAX_TIMEOUT_S:
            yield Diagnostic(
                "invalid-value",
                f"spec.{path[0]}: {value} is longer than a year",
                item.span("spec", *path),
                severity="warning",
                hint="write a shorter duration, or remove the key",
            )
    if spec.timeout is not None and spec.checkpoint is not None:
        every = duration_seconds(spec.checkpoint.every)
        if duration_seconds(spec.timeout) <= every and "every" in spec.checkpoint.model_fields_set:
            yield Diagnostic(
                "without-effect",
                f"`every: {spec.checkpoint.every}` saves nothing: the job ends after {spec.timeout}",
                item.span("spec", "checkpoint", "every"),
                severity="warning",
                hint="write less than `timeout`",
            )
    mode = program.cluster_spec(item.cluster).reconcile.mode
    if spec.ttl is not None and mode in STARTS_JOBS_AGAIN:
        yield Diagnostic(
            "without-effect",
            f"spec.ttl has no effect on cluster {item.cluster}: {mode} would recreate the deleted Job",
            item.span("spec", "ttl"),
            severity="warning",
            hint="remove the key; the Job is deleted with its spec",
        )


def _check_names(item: Item[TrainingJobSpec], made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield a problem if the longest name is too long: the host name of a role's last pod."""
    names = [f"{job_name(item, part.name)}-{part.replicas - 1}" for part in made]
    if item.spec.strategy != "single":
        names.append(rendezvous_name(item))
    longest = max(names, key=len)
    if len(longest) > 63:
        yield Diagnostic(
            "name-too-long",
            f"the host name `{longest}` would have {len(longest)} characters; the limit is 63",
            item.span("metadata", "name"),
            hint=f"shorten the job's name by {len(longest) - 63}",
        )


def _check_compute(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    alone = False
    for path, compute in declared_roles(spec):
        key = ".".join(str(step) for step in path[1:])
        replicas = worker_bounds(spec)[0] if key == "workers" else compute.replicas
        # Of an elastic job, only workers above the fewest run on spot machines.
        asked = with_pod(compute, settings_of(spec, compute)) if spot_from(spec) else whole_compute(spec, compute)
        yield from unused_model(item, compute, path)
        found = gpu_problems(item, program, asked, path, replicas)
        yield from found
        alone = alone or bool(found)
        shared = compute.shared_memory
        if shared is not None and parse_quantity(shared) >= parse_quantity(compute.memory):
            least = format_quantity(parse_quantity(shared) * 2)
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}.sharedMemory: {shared} counts towards the pod's memory, which is {compute.memory}",
                item.span(*path, "sharedMemory"),
                hint=f"leave memory for the code: write `memory: {least}`, or reduce `sharedMemory`",
                notes=(Note(item.span(*path, "memory"), "the pod's memory"),)
                if "memory" in compute.model_fields_set
                else (),
            )
    together = None if alone else together_problem(item, program, list(running_roles(item)))
    if together is not None:
        yield together


def _check_spot(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of a job on machines that the provider takes back."""
    spec, where = item.spec, ("spec", "spot")
    if spec.spot == "never":
        return
    yield from spot_problems(
        item, program, spec.spot, [whole_compute(spec, role) for role in (spec.workers, *spec.worker_groups)]
    )
    if not spec.preemptible:
        yield Diagnostic(
            "conflicting-keys",
            "`preemptible: false` and spot machines exclude each other: the provider takes them back at any time",
            item.span(*where, key=True),
            hint="remove one of them",
            notes=(Note(item.span("spec", "preemptible"), "not preemptible"),),
        )
    elif spec.checkpoint is None and not spec.restart_from_start:
        yield Diagnostic(
            "spot-not-restartable",
            f"{item} has no checkpoint: when the provider takes a machine back, all of its work is lost",
            item.span(*where, key=True),
            hint="add `checkpoint: {path: s3://…, every: 15m}`, or `restartFromStart: true` to accept it",
        )
    if spot_from(spec) and not program.cluster_spec(item.cluster).daemons.scheduler:
        yield Diagnostic(
            "missing-daemon",
            "only avactl's scheduler keeps the first `workers.min` workers of an elastic job off spot machines, and it "
            f"is disabled on cluster {item.cluster}",
            item.span(*where),
            hint=f"add `daemons: {{scheduler: true}}` to Cluster {item.cluster}, or write `spot: require`",
        )
    elif spot_from(spec) and worker_bounds(spec)[0] == worker_bounds(spec)[1]:
        yield Diagnostic(
            "without-effect",
            "spec.spot: an elastic job keeps its first `workers.min` workers off spot machines, and it has no others",
            item.span(*where),
            severity="warning",
            hint="write a larger `workers.max`, or `spot: require`",
        )
    grace = spec.pod.termination_grace_period_seconds if spec.pod is not None else None
    yield from notice_problem(
        item,
        program,
        spec.spot,
        grace,
        ("spec", "pod", "terminationGracePeriodSeconds"),
        whole_compute(spec, spec.workers),
    )


def _check_pods(item: Item[TrainingJobSpec], program: Program, made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield the problems of pod settings: of the job, and of its roles."""
    spec = item.spec
    yield from root_problem(item, program)
    computes = [whole_compute(spec, compute) for _, compute in declared_roles(spec)]
    # Containers of avactl beside the program have the pod's account, and more rights than programs.
    others = any(not part.leads for part in made) or len(leading_jobs(item, made)) > 1
    yield from pod_problems(item, program, spec.pod, ("spec", "pod"), computes, other_account=others)
    for (path, role), compute in zip(declared_roles(spec), computes, strict=True):
        yield from pod_problems(item, program, role.pod, (*path, "pod"), [compute], other_account=others)
    if sum(part.replicas for part in made) > 1:
        yield from _names_of_pods(item, spec.pod, ("spec", "pod"))
        for path, role in declared_roles(spec):
            yield from _names_of_pods(item, role.pod, (*path, "pod"))


def _names_of_pods(
    item: Item[TrainingJobSpec], settings: PodSettings | None, path: tuple[str | int, ...]
) -> Iterator[Diagnostic]:
    """Yield a `dnsPolicy` with which the pods of a job do not find each other: it would wait until its timeout."""
    policy = None if settings is None else settings.dns_policy
    config = None if settings is None else settings.dns_config
    right = "ClusterFirst" if item.spec.host_network is None else "ClusterFirstWithHostNet"
    # In the machines' network, `ClusterFirst` means `Default`.
    outside = policy == "Default" or (policy == "ClusterFirst" and right != policy)
    if outside or (policy == "None" and (config is None or not config.searches)):
        yield Diagnostic(
            "invalid-value",
            f"with `dnsPolicy: {policy}` the pods of the job do not find each other by their names in the cluster",
            item.span(*path, "dnsPolicy"),
            severity="warning",
            hint=f"write `dnsPolicy: {right}`: name servers of `dnsConfig` are added to the cluster's",
        )


def _listening_roles(item: Item[TrainingJobSpec], made: list[RolePods]) -> list[WorkloadRole]:
    """The pods that listen on the rendezvous port."""
    return [
        WorkloadRole(("spec",), part.compute, part.replicas, part.replicas)
        for part in made
        if listens_on_rendezvous(item.spec, part)
    ]


def _check_within(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a problem if `within` is not a topology level that the scheduler knows."""
    level, path = item.spec.workers.within, ("spec", "workers", "within")
    if level is None:
        return
    cluster = program.cluster(item.cluster)
    levels, on = cluster.spec.placement.levels, cluster.spec.daemons.scheduler
    if level not in levels:
        named = "levels" in cluster.spec.placement.model_fields_set
        near = next((each for each in levels if each.rpartition("/")[2] == level), None) or closest_word(level, levels)
        known = f"write {one_of(levels)}, or add it to" if levels else "add it to"
        hint = f"did you mean `{near}`?" if near else f"{known} `placement.levels` of Cluster {cluster.name}"
        yield Diagnostic(
            "missing-reference",
            f"`{level}` is not a topology level of cluster {cluster.name}",
            item.span(*path),
            hint=hint,
            notes=(Note(cluster.span("spec", "placement", "levels"), "its levels"),) if named else (),
        )
    elif item.spec.strategy == "single" or not on:
        single = item.spec.strategy == "single"
        why = "strategy `single` has one pod" if single else f"the scheduler of cluster {cluster.name} is off"
        yield Diagnostic(
            "without-effect",
            f"spec.workers.within has no effect: {why}",
            item.span(*path),
            severity="warning",
            hint="remove the key" if single else "add `daemons: {scheduler: true}` to the Cluster, or remove the key",
        )


def _shared_volumes(item: Item[TrainingJobSpec], program: Program, made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield volumes that several pods share on a storage class for one node."""
    spec = item.spec
    savers = pods_with(made, CHECKPOINT_ROLES)
    if spec.checkpoint is not None and spec.checkpoint.volume is not None and savers > 1:
        path = ("spec", "checkpoint", "volume")
        yield from sharing_problems(item, program, "checkpoint", path, f"{savers} pods share the checkpoint volume")
    if log_path(spec) is not None:
        what = "the job and its TensorBoard share the log volume"
        yield from sharing_problems(item, program, "checkpoint", ("spec", "tensorboard"), what)


def _check_cluster(item: Item[TrainingJobSpec], program: Program, made: list[RolePods]) -> Iterator[Diagnostic]:
    """Yield the problems of the strategy's requirements on the cluster."""
    if any(not part.leads for part in made) or len(leading_jobs(item, made)) > 1:
        yield from require_image(item, program, "kubectl", ("spec", "strategy"))
    if has_master(item.spec):
        yield from require_image(item, program, "avactl", ("spec", "strategy"))
    if item.spec.strategy == "elastic":
        version = program.cluster_spec(item.cluster).kubernetes_version
        if int(version.split(".")[1]) < _SUCCESS_POLICY:
            cluster = program.cluster(item.cluster)
            yield Diagnostic(
                "kubernetes-version",
                f"strategy `elastic` needs Kubernetes 1.{_SUCCESS_POLICY}, but cluster {cluster.name} has {version}",
                item.span("spec", "strategy"),
                hint="use `allReduce`, or upgrade the cluster",
                notes=(Note(cluster.span("spec", "kubernetesVersion"), "the cluster's version"),),
            )
