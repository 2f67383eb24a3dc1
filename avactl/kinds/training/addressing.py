"""Rendezvous of a job's pods: environment for torchrun, TF_CONFIG and ps-lite, and a generic one for other code.

A pod learns its index from the Job controller's annotation, and Kubernetes expands `$(NAME)` in a value from
variables defined earlier. So every pod of a role has the same template, and no shell computes an address. Only the pods
of further groups need a shell, which adds their index to the number of pods before them.
Values that depend on the number of pods are in the ConfigMap `NAME-rendezvous`.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from avactl.contracts.pod_annotations import JOB_INDEX
from avactl.kinds.training.roles import (
    MASTER,
    RolePods,
    has_master,
    pod_host,
    pod_hosts,
    pods_by_role,
    rendezvous_name,
    worker_bounds,
)
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering.host_network import host_port
from avactl.program.lowering.pods import env_list
from avactl.program.manifest import Body
from avactl.program.program import Item

INDEX = "JOB_COMPLETION_INDEX"

TORCH_PORT = 29500
"""torchrun's default, --master-port and --rdzv-endpoint."""
TF_PORT = 2222
"""TensorFlow's own examples of TF_CONFIG."""
_MASTER_PORT = 29600
PS_LITE_PORT = 9091
"""The port that ps-lite's local launcher uses, DMLC_PS_ROOT_PORT."""

_TF_ROLES = {"chief": "chief", "worker": "worker", "server": "ps", "evaluator": "evaluator"}


def rendezvous_port(item: Item[TrainingJobSpec]) -> int:
    """Rendezvous port of a job's pods: the framework's own, or an allocated one in the network of the machines."""
    spec = item.spec
    if spec.host_network is not None:
        return host_port(item, spec.host_network)
    if spec.framework == "tensorflow":
        return TF_PORT
    return PS_LITE_PORT if spec.framework == "mxnet" else TORCH_PORT


def master_port(item: Item[TrainingJobSpec]) -> int:
    """Port of the job master. In the network of the machines, its pod declares the rendezvous port, and no other."""
    return _MASTER_PORT if item.spec.host_network is None else rendezvous_port(item)


def listens_on_rendezvous(spec: TrainingJobSpec, part: RolePods) -> bool:
    """Return True if pods of a part listen on the rendezvous port. mpirun's daemons let the kernel choose ports."""
    if spec.strategy == "parameterServer" and spec.framework == "mxnet":
        return part.role == "scheduler"
    return spec.strategy in ("parameterServer", "allReduce") and part.role != "evaluator"


def field_variable(name: str, path: str) -> Body:
    """Environment variable from a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def config_value(item: Item[TrainingJobSpec], name: str, key: str) -> Body:
    """Environment variable from the rendezvous ConfigMap."""
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": rendezvous_name(item), "key": key}}}


def processes_per_pod(part: RolePods) -> int:
    """Number of processes per pod: one per GPU."""
    return part.compute.visible_gpus or 1


def starts_with_torchrun(spec: TrainingJobSpec, part: RolePods) -> bool:
    """Return True if torchrun starts the processes of a worker. Elastic ones meet at the job master instead."""
    several = spec.strategy == "elastic" and processes_per_pod(part) > 1
    return spec.framework == "pytorch" and (several or spec.strategy == "allReduce")


def slots_per_worker(spec: TrainingJobSpec, part: RolePods) -> int:
    """Number of MPI ranks per worker of a group."""
    return spec.slots_per_worker or part.compute.visible_gpus or 1


def mpi_implementation(spec: TrainingJobSpec) -> str:
    """The MPI library of a job."""
    return spec.mpi.implementation if spec.mpi is not None else "openmpi"


def build_hostfile(spec: TrainingJobSpec, slots: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return the file with hosts and their numbers of ranks, in the form of the job's MPI library.

    Intel MPI reads only hosts from the file that a variable names, and the number of ranks from I_MPI_PERHOST.
    """
    form = {"openmpi": "{} slots={}\n", "mpich": "{}:{}\n", "intel": "{}\n"}[mpi_implementation(spec)]
    data = {"hostfile": "".join(form.format(name, count) for name, count in slots)}
    return {**data, "slots": str(slots[0][1])} if mpi_implementation(spec) == "intel" else data


def rendezvous_data(item: Item[TrainingJobSpec], parts: list[RolePods]) -> dict[str, str]:
    """Data of the rendezvous ConfigMap; empty for a job with one pod."""
    spec = item.spec
    count = pods_by_role(parts)
    least, most = worker_bounds(spec)
    if spec.strategy == "single":
        return {}
    if spec.strategy == "elastic":
        return {"workers": f"{least}:{most}"}
    if spec.strategy == "mpi":
        slots = [(name, slots_per_worker(spec, part)) for part in parts for name in pod_hosts(item, [part], "worker")]
        return build_hostfile(spec, slots)
    if spec.framework == "tensorflow":
        return {"cluster": _tf_cluster(item, parts)}
    data = {"nnodes": str(count["worker"])}
    if spec.strategy == "parameterServer":
        data["servers"] = str(count["server"])
    if spec.framework == "custom" or (spec.framework, spec.strategy) == ("pytorch", "parameterServer"):
        data |= {f"{role}-hosts": ",".join(pod_hosts(item, parts, role)) for role in count if role != "evaluator"}
    elif spec.strategy == "allReduce":
        data["world-size"] = str(
            sum(part.replicas * processes_per_pod(part) for part in parts if part.role == "worker")
        )
    return data


def _tf_cluster(item: Item[TrainingJobSpec], parts: Sequence[RolePods]) -> str:
    """The `cluster` of TF_CONFIG. The evaluator is not a member.

    Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
    """
    cluster = {
        _TF_ROLES[role]: [f"{name}:{rendezvous_port(item)}" for name in pod_hosts(item, parts, role)]
        for role in pods_by_role(parts)
        if role != "evaluator"
    }
    return orjson.dumps(cluster, option=orjson.OPT_SORT_KEYS).decode()


FIRST_INDEX = "AVACTL_FIRST_INDEX"
_OWN_INDEX = "@"
"""Placeholder in TF_CONFIG that the shell of a further group replaces. No DNS name has it."""
INDEX_SCRIPT = f"""\
AVACTL_INDEX=$(({FIRST_INDEX} + {INDEX}))
export AVACTL_INDEX
if [ -n "${{NODE_RANK:-}}" ]; then export NODE_RANK=$AVACTL_INDEX PET_NODE_RANK=$AVACTL_INDEX; fi
if [ -n "${{TF_CONFIG:-}}" ]; then
  export TF_CONFIG="${{TF_CONFIG%{_OWN_INDEX}*}}$AVACTL_INDEX${{TF_CONFIG#*{_OWN_INDEX}}}"
fi
exec "$@"
"""
"""Runs a command with the pod's index among all pods of its role."""


def adds_index(item: Item[TrainingJobSpec], part: RolePods) -> bool:
    """Return True if the indexes of a part's pods follow those of another group. mpirun numbers its ranks itself."""
    return part.first > 0 and item.spec.strategy != "mpi"


def with_index(item: Item[TrainingJobSpec], part: RolePods, command: list[str]) -> list[str]:
    """Return the command of a part with its shell, if it needs one."""
    return ["sh", "-c", INDEX_SCRIPT, "sh", *command] if command and adds_index(item, part) else command


def pod_environment(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    """Environment variables with a pod's identity and rendezvous settings."""
    spec = item.spec
    result = [
        field_variable(INDEX, JOB_INDEX.field_path),
        *env_list({"AVACTL_JOB": item.name, "AVACTL_ROLE": part.role}),
        *env_list({FIRST_INDEX: str(part.first)} if adds_index(item, part) else {"AVACTL_INDEX": f"$({INDEX})"}),
    ]
    match spec.strategy:
        case "allReduce":
            result += _tensorflow_environment(item, part) if spec.framework == "tensorflow" else _all_reduce(item, part)
        case "parameterServer":
            result += _consistency_environment(spec)
            if spec.framework == "tensorflow":
                result += _tensorflow_environment(item, part)
            elif spec.framework == "mxnet":
                result += _ps_lite(item, part)
            else:
                result += _generic_environment(item, ("worker", "server"))
            if has_master(spec) and part.role == "worker":
                result += _master_environment(item, part)
        case "elastic":
            result += _elastic_environment(item, part)
        case "single" if spec.framework == "pytorch":
            # For a command that is torchrun itself: one process per GPU of the machine.
            result += env_list({"PET_NPROC_PER_NODE": str(processes_per_pod(part))})
    return result


def _tensorflow_environment(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    index = _OWN_INDEX if adds_index(item, part) else f"$({INDEX})"
    task = f'{{"index":{index},"type":"{_TF_ROLES[part.role]}"}}'
    return [
        config_value(item, "AVACTL_CLUSTER", "cluster"),
        {"name": "TF_CONFIG", "value": f'{{"cluster":$(AVACTL_CLUSTER),"task":{task}}}'},
    ]


def _all_reduce(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    """Environment for torchrun with static rendezvous: a node's rank is its index, and the first node is the master.

    Every torchrun option has a variable PET_OPTION. Source: torch/distributed/argparse_util.py, elastic/run.
    """
    master = {"MASTER_ADDR": pod_host(item, "worker", 0), "MASTER_PORT": str(rendezvous_port(item))}
    if item.spec.framework != "pytorch":
        return [*env_list(master), *_generic_environment(item, ("worker",))]
    return [
        *env_list(master),
        config_value(item, "WORLD_SIZE", "world-size"),
        *env_list({"NODE_RANK": f"$({INDEX})"}),
        config_value(item, "PET_NNODES", "nnodes"),
        *env_list(
            {
                "PET_NPROC_PER_NODE": str(processes_per_pod(part)),
                "PET_NODE_RANK": f"$({INDEX})",
                "PET_MASTER_ADDR": master["MASTER_ADDR"],
                "PET_MASTER_PORT": master["MASTER_PORT"],
            }
        ),
    ]


def _elastic_environment(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    """Environment with the job master, which holds the rendezvous; torchrun only starts the processes of a pod.

    With a standalone rendezvous, it restarts them together. Source: torch/distributed/run.py.
    """
    result = [
        *_master_environment(item, part),
        config_value(item, "AVACTL_WORKER_RANGE", "workers"),
    ]
    if item.spec.framework == "pytorch" and processes_per_pod(part) > 1:
        torchrun = {
            "PET_STANDALONE": "1",
            "PET_NPROC_PER_NODE": str(processes_per_pod(part)),
            "PET_MAX_RESTARTS": str(item.spec.retries),
        }
        result += env_list(torchrun)
    return result


def _master_environment(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    """Address of the job master. A pod that is made anew takes the place of the one before there at once."""
    address = f"{pod_host(item, MASTER, 0)}:{master_port(item)}"
    return env_list({"AVACTL_MASTER": address, "AVACTL_WORKER": f"{part.role}-$({INDEX})"})


def _ps_lite(item: Item[TrainingJobSpec], part: RolePods) -> list[Body]:
    """Environment for ps-lite. Source: https://mxnet.apache.org/versions/1.9.1/api/faq/distributed_training

    DMLC_USE_KUBERNETES makes the scheduler listen on its pod's address instead of its name. With heartbeats a
    restarted worker replaces the lost one.
    """
    return [
        field_variable("DMLC_NODE_HOST", "status.podIP"),
        config_value(item, "DMLC_NUM_WORKER", "nnodes"),
        config_value(item, "DMLC_NUM_SERVER", "servers"),
        *env_list(
            {
                "DMLC_ROLE": part.role,
                "DMLC_PS_ROOT_URI": pod_host(item, "scheduler", 0),
                "DMLC_PS_ROOT_PORT": str(rendezvous_port(item)),
                "DMLC_USE_KUBERNETES": "1",
                "PS_HEARTBEAT_INTERVAL": "5",
                "PS_HEARTBEAT_TIMEOUT": "60",
            }
        ),
    ]


def _generic_environment(item: Item[TrainingJobSpec], roles: tuple[str, ...]) -> list[Body]:
    """Addresses of all pods, for code that connects them itself."""
    result = [config_value(item, "AVACTL_WORKERS", "nnodes")]
    if "server" in roles:
        result.append(config_value(item, "AVACTL_SERVERS", "servers"))
    result += [config_value(item, f"AVACTL_{role.upper()}_HOSTS", f"{role}-hosts") for role in roles]
    return [*result, *env_list({"AVACTL_PORT": str(rendezvous_port(item))})]


def _consistency_environment(spec: TrainingJobSpec) -> list[Body]:
    """Allowed divergence between workers; MXNet expresses it as the type of its KVStore."""
    env: dict[str, str] = {"AVACTL_CONSISTENCY": spec.consistency}
    if spec.staleness is not None:
        env["AVACTL_STALENESS"] = str(spec.staleness)
    if spec.backup_workers:
        env["AVACTL_BACKUP_WORKERS"] = str(spec.backup_workers)
    if spec.framework == "mxnet":
        env["AVACTL_KVSTORE"] = "dist_async" if spec.consistency == "asp" else "dist_sync"
    return env_list(env)
