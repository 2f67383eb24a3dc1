"""Roles of a training job: their pods, the leading role, and names."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.kinds.fields.compute import Compute
from avactl.kinds.program import Item
from avactl.kinds.training.spec import Master, Role

DATA_ROLES = frozenset(("worker", "chief", "evaluator"))
"""Roles that read data and write checkpoints and logs. Launcher and scheduler only start."""
MASTER = "master"
"""Role of the job master of an elastic job, which is a program of avactl."""
CHECKPOINT_ROLES = DATA_ROLES | {"server"}
"""Roles that write checkpoints. TensorFlow saves a variable from the server that holds it."""


class Part(NamedTuple):
    """The pods of one role: one indexed Job."""

    role: str
    key: str
    """Key of the spec that declares the role."""
    compute: Compute
    replicas: int
    command: list[str]
    args: list[str]
    leads: bool
    """True if the job ends when these pods end. Pods of other roles end with them."""


def bounds(spec: Any) -> tuple[int, int]:
    """Return the minimum and maximum number of workers. They differ only for strategy `elastic`."""
    workers = spec.workers
    if spec.strategy != "elastic":
        return workers.replicas, workers.replicas
    given = workers.replicas if "replicas" in workers.model_fields_set else None
    least = workers.min or given or 1
    most = workers.max or given or least
    return least, max(least, most)


def parts(spec: Any) -> list[Part]:
    """Return the roles of a job, the leading one first."""
    replicas = bounds(spec)[1]
    command, args, workers = spec.command, spec.args, spec.workers

    def of(role: str, key: str, declared: Role) -> Part:
        # A role's own command comes with its own arguments.
        own_args = declared.args if declared.command else declared.args or args
        return Part(
            role, key, declared, declared.replicas, declared.command or command, own_args, leads=role == "launcher"
        )

    def worker(count: int, role: str = "worker", leads: bool = True) -> Part:
        return Part(role, "workers", workers, count, command, args, leads)

    found: list[Part]
    if spec.strategy == "mpi":
        found = [of("launcher", "launcher", spec.launcher or Role()), worker(replicas, leads=False)]
    elif spec.strategy == "parameterServer":
        servers = of("server", "servers", spec.servers or Role())
        if spec.framework == "tensorflow":
            # TensorFlow counts its chief separately from the workers; it is the first declared worker.
            found = [worker(1, "chief"), worker(replicas - 1, leads=False), servers]
        elif spec.framework == "mxnet":
            scheduler = Part("scheduler", "servers", Role(cpu="500m", memory="1Gi"), 1, command, args, False)
            found = [worker(replicas), servers, scheduler]
        else:
            found = [worker(replicas), servers]
    else:
        found = [worker(replicas)]
    if spec.strategy == "elastic":
        found.append(Part(MASTER, "master", master_compute(spec), 1, [], [], leads=False))
    if spec.evaluator is not None:
        found.append(of("evaluator", "evaluator", spec.evaluator))
    return [part for part in found if part.replicas > 0]


def master_compute(spec: Any) -> Compute:
    """Requests of the job master."""
    master = spec.master or Master()
    return Role(cpu=master.cpu, memory=master.memory)


def pods_with(made: list[Part], roles: frozenset[str]) -> int:
    """Number of pods of the given roles."""
    return sum(part.replicas for part in made if part.role in roles)


def job_name(item: Item, role: str) -> str:
    """Name of a role's Job; its pods are `NAME-INDEX`."""
    return f"{item.name}-{role}"


def rendezvous_name(item: Item) -> str:
    """Name of the headless Service for pod discovery, and of the ConfigMap with the number of pods."""
    return f"{item.name}-rendezvous"


def host(item: Item, role: str, index: int | str) -> str:
    """DNS name of one pod."""
    return f"{item.name}-{role}-{index}.{rendezvous_name(item)}.{item.ns}.svc"


def hosts(item: Item, role: str, count: int) -> list[str]:
    """DNS names of a role's pods, by index."""
    before, after = f"{item.name}-{role}-", f".{rendezvous_name(item)}.{item.ns}.svc"
    return [f"{before}{index}{after}" for index in range(count)]
