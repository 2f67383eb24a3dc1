"""Roles of a training job: their pods, the leading role, and names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from avactl.kinds.training.spec import (
    Master,
    OwnPod,
    Role,
    ServerGroup,
    Stragglers,
    TrainingJobSpec,
    WorkerGroup,
    Workers,
)
from avactl.program.program import Item
from avactl.spec.schema.compute import Compute
from avactl.spec.schema.pod_requests import on_spot, with_pod
from avactl.spec.schema.pod_settings import PodSettings, merge_settings

DATA_ROLES = frozenset(("worker", "chief", "evaluator"))
"""Roles that read data and write checkpoints and logs. Launcher and scheduler only start."""
MASTER = "master"
"""Role of the job master, which is a program of avactl."""
CHECKPOINT_ROLES = DATA_ROLES | {"server"}
"""Roles that write checkpoints. TensorFlow saves a variable from the server that holds it."""

Path = tuple[str | int, ...]
Declared = Workers | WorkerGroup | Role | ServerGroup
"""A role or group in a spec."""


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of one role, or of one group of a role: one indexed Job."""

    role: str
    key: str
    """Key of the spec that declares the role."""
    compute: Compute
    replicas: int
    command: list[str]
    args: list[str]
    leads: bool
    """True if the job ends when these pods end. Pods of other roles end with them."""
    group: str = ""
    """Name of the group; "" for the first one."""
    first: int = 0
    """Index of the first pod among all pods of the role."""

    def settings(self, spec: TrainingJobSpec) -> PodSettings | None:
        """Return the pod settings of the role; the job master has none."""
        return None if self.role == MASTER else settings_of(spec, self.compute)

    @property
    def name(self) -> str:
        """Name within the job."""
        return f"{self.role}-{self.group}" if self.group else self.role


def settings_of(spec: TrainingJobSpec, role: Compute) -> PodSettings | None:
    """Return the pod settings of a role or group: the job's and its own."""
    return merge_settings(spec.pod, role.pod if isinstance(role, OwnPod) else None)


def whole_compute(spec: TrainingJobSpec, role: Compute) -> Compute:
    """Return the compute of a role's pods with all of their containers, and their use of spot machines."""
    workers = any(role is each for each in (spec.workers, *spec.worker_groups))
    return on_spot(with_pod(role, settings_of(spec, role)), spec.spot if workers else "never")


def service_accounts(spec: TrainingJobSpec, made: Iterable[RolePods]) -> list[str]:
    """Return the service accounts of the team that pods of the job have."""
    found = [settings.service_account_name for part in made if (settings := part.settings(spec)) is not None]
    return list(dict.fromkeys(name for name in found if name is not None))


def worker_bounds(spec: TrainingJobSpec) -> tuple[int, int]:
    """Return the minimum and maximum number of workers. They differ only for strategy `elastic`."""
    workers = spec.workers
    if spec.strategy != "elastic":
        return workers.replicas, workers.replicas
    given = workers.replicas if "replicas" in workers.model_fields_set else None
    least = workers.min or given or 1
    most = workers.max or given or least
    return least, max(least, most)


def workers_of(spec: TrainingJobSpec) -> int:
    """Return the number of workers of all groups, at most."""
    return worker_bounds(spec)[1] + sum(group.replicas for group in spec.worker_groups)


def declared_roles(spec: TrainingJobSpec) -> Iterator[tuple[Path, Declared]]:
    """Yield the roles and groups that a spec declares: path and compute."""
    roles: list[tuple[str, Declared | None, Sequence[Declared]]] = [
        ("workers", spec.workers, spec.worker_groups),
        ("servers", spec.servers, spec.server_groups),
        ("launcher", spec.launcher, ()),
        ("evaluator", spec.evaluator, ()),
    ]
    for key, role, groups in roles:
        if role is not None:
            yield ("spec", key), role
        for index, group in enumerate(groups):
            yield ("spec", f"{key[:-1]}Groups", index), group


def job_parts(spec: TrainingJobSpec) -> list[RolePods]:
    """Return the roles of a job with their groups, the leading one first."""
    replicas = worker_bounds(spec)[1]
    command, args, workers = spec.command, spec.args, spec.workers

    def of(role: str, key: str, declared: Role) -> RolePods:
        # A role's own command comes with its own arguments.
        own_args = declared.args if declared.command else declared.args or args
        return RolePods(
            role, key, declared, declared.replicas, declared.command or command, own_args, leads=role == "launcher"
        )

    def worker(count: int, role: str = "worker", leads: bool = True) -> RolePods:
        return RolePods(role, "workers", workers, count, command, args, leads)

    found: list[RolePods]
    if spec.strategy == "mpi":
        found = [
            of("launcher", "launcher", spec.launcher or Role()),
            *_role_groups(spec, worker(replicas, leads=False)),
        ]
    elif spec.strategy == "parameterServer":
        servers = _role_groups(spec, of("server", "servers", spec.servers or Role()))
        if spec.framework == "tensorflow":
            # TensorFlow counts its chief separately from the workers; it is the first declared worker.
            found = [worker(1, "chief"), *_role_groups(spec, worker(replicas - 1, leads=False)), *servers]
        elif spec.framework == "mxnet":
            scheduler = RolePods("scheduler", "servers", Role(cpu="500m", memory="1Gi"), 1, command, args, False)
            found = [*_role_groups(spec, worker(replicas)), *servers, scheduler]
        else:
            found = [*_role_groups(spec, worker(replicas)), *servers]
    elif spec.strategy == "allReduce":
        found = _role_groups(spec, worker(replicas))
    else:
        found = [worker(replicas)]
    if has_master(spec):
        found.append(RolePods(MASTER, "master", master_compute(spec), 1, [], [], leads=False))
    if spec.evaluator is not None:
        found.append(of("evaluator", "evaluator", spec.evaluator))
    return [part for part in found if part.replicas > 0]


def _role_groups(spec: TrainingJobSpec, first: RolePods) -> list[RolePods]:
    """Return the pods of a role with its further groups, which differ only in their machines."""
    found, index = [first], first.replicas
    groups: Sequence[WorkerGroup | ServerGroup] = spec.worker_groups if first.key == "workers" else spec.server_groups
    for group in groups:
        found.append(
            RolePods(
                first.role, first.key, group, group.replicas, first.command, first.args, first.leads, group.name, index
            )
        )
        index += group.replicas
    return found


def spot_from(spec: TrainingJobSpec) -> int:
    """Return the lowest index of workers on spot machines: an elastic job that may run elsewhere needs its fewest."""
    return worker_bounds(spec)[0] if spec.strategy == "elastic" and spec.spot == "allow" else 0


def has_master(spec: TrainingJobSpec) -> bool:
    """Return True for jobs with a job master: elastic ones, and those whose workers its clock keeps in step."""
    clock = spec.consistency == "ssp" or spec.backup_workers > 0
    return spec.strategy == "elastic" or (spec.strategy == "parameterServer" and clock)


def straggler_replacement(spec: TrainingJobSpec) -> Stragglers | None:
    """Return how slow workers are replaced; None if they are not, as without any to spare."""
    least, most = worker_bounds(spec)
    chosen = spec.stragglers or Stragglers()
    return chosen if least < most and chosen.action == "replace" else None


def master_compute(spec: TrainingJobSpec) -> Compute:
    """Requests of the job master."""
    master = spec.master or Master()
    return Role(cpu=master.cpu, memory=master.memory)


def pods_with(made: Iterable[RolePods], roles: frozenset[str]) -> int:
    """Number of pods of the given roles."""
    return sum(part.replicas for part in made if part.role in roles)


def pods_by_role(made: Iterable[RolePods]) -> dict[str, int]:
    """Number of pods by role."""
    found: dict[str, int] = {}
    for part in made:
        found[part.role] = found.get(part.role, 0) + part.replicas
    return found


def leading_jobs(item: Item[TrainingJobSpec], made: Iterable[RolePods]) -> list[str]:
    """Names of the leading Jobs: the run is complete when all of them are."""
    return [job_name(item, part.name) for part in made if part.leads]


def job_name(item: Item[TrainingJobSpec], role: str) -> str:
    """Name of the Job of a role, or of its group by `RolePods.name`; its pods are `NAME-INDEX`."""
    return f"{item.name}-{role}"


def rendezvous_name(item: Item[TrainingJobSpec]) -> str:
    """Name of the headless Service for pod discovery, and of the ConfigMap with the number of pods."""
    return f"{item.name}-rendezvous"


def pod_host(item: Item[TrainingJobSpec], role: str, index: int | str) -> str:
    """DNS name of one pod of a role, or of its group by `RolePods.name`."""
    return f"{item.name}-{role}-{index}.{rendezvous_name(item)}.{item.ns}.svc"


def pod_hosts(item: Item[TrainingJobSpec], made: Iterable[RolePods], role: str) -> list[str]:
    """DNS names of a role's pods, by index."""
    after = f".{rendezvous_name(item)}.{item.ns}.svc"
    return [
        f"{item.name}-{part.name}-{index}{after}"
        for part in made
        if part.role == role
        for index in range(part.replicas)
    ]
