"""The job master: a pod that follows the workers' Job, and the ConfigMap that backs its journal up.

Elastic jobs have one, and those with bounded staleness or backup workers. The master hands out the data in tasks. The
kubelet restarts its container in place, with the journal in a volume of the pod; a master that is recreated on another
node starts from the ConfigMap.
"""

from __future__ import annotations

from math import ceil

from avactl.contracts.pod_annotations import RUN_DIGEST
from avactl.kinds.training.addressing import field_variable, master_port
from avactl.kinds.training.followers import TOKEN_PATH
from avactl.kinds.training.roles import MASTER, RolePods, straggler_replacement, worker_bounds, workers_of
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import build_resources, env_list
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.schema.values import duration_seconds

HTTP_PORT = 8080
"""Port of the master's metrics and probes."""
STATE = "/var/lib/avactl"
"""Directory of the journal."""
STATE_DATA = Owned("ConfigMap", ("binaryData",), "the master of an elastic job, in the ConfigMap `NAME-master`")


def local_args(item: Item[TrainingJobSpec]) -> list[str]:
    """Arguments on a machine without an API server. The clock bounds the staleness, whatever scripts ask for."""
    spec = item.spec
    args = ["--listen", f"$(POD_IP):{master_port(item)}", "--state", f"{STATE}/journal"]
    if spec.strategy == "parameterServer" and spec.consistency == "ssp":
        args += ["--staleness", str(spec.staleness), "--workers", str(workers_of(spec))]
    elif spec.strategy == "parameterServer":
        args += ["--gradients", str(workers_of(spec) - spec.backup_workers)]
    elif (slow := straggler_replacement(spec)) is not None:
        args += [
            "--replace-stragglers",
            f"{worker_bounds(spec)[0]}:{slow.below:g}:{ceil(duration_seconds(slow.after))}",
        ]
    return args


def state_name(item: Item[TrainingJobSpec]) -> str:
    """Name of the ConfigMap with the master's state."""
    return f"{item.name}-{MASTER}"


def build_container(item: Item[TrainingJobSpec], program: Program, part: RolePods) -> Body:
    """Build the master's container, without what `pods.pod_spec` adds. It has the followers' token.

    In the network of the machine it has no probes and metrics: their port might be in use there.
    """
    http = item.spec.host_network is None
    return {
        "name": MASTER,
        "image": program.cluster_spec(item.cluster).images.avactl,
        "command": ["avactl", "elastic", "master"],
        "args": [
            *local_args(item),
            *("--run", "$(AVACTL_RUN)", "--config-map", f"{item.ns}/{state_name(item)}"),
            # The model goes on from its checkpoint, and so does the data.
            *(["--resume"] if item.spec.checkpoint is not None else []),
            *(["--http", f"$(POD_IP):{HTTP_PORT}"] if http else []),
        ],
        "env": [
            field_variable("AVACTL_RUN", RUN_DIGEST.field_path),
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_IP", "status.podIP"),
            *env_list({"AVACTL_JOB": item.name}),
        ],
        "resources": build_resources(part.compute.cpu, part.compute.memory),
        **(_build_probes() if http else {}),
    }


def _build_probes() -> Body:
    """Probes of a master that reads its state, and waits for an API server that does not answer, when it starts."""
    return {
        "ports": [{"name": "http", "containerPort": HTTP_PORT}],
        "startupProbe": _build_probe("/livez", 2, 60),
        "livenessProbe": _build_probe("/livez", 10, 6),
        "readinessProbe": _build_probe("/readyz", 5, 2),
    }


def _build_probe(path: str, every: int, failures: int) -> Body:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": every, "failureThreshold": failures}


def with_token(pod: Body) -> Body:
    """Mount the followers' token in the master's container too."""
    mount = {"name": "token", "mountPath": TOKEN_PATH, "readOnly": True}
    made = [
        {**each, "volumeMounts": [*each.get("volumeMounts", ()), mount]} if each["name"] == MASTER else each
        for each in pod["initContainers"]
    ]
    return {**pod, "initContainers": made}


def build_state(item: Item[TrainingJobSpec]) -> Manifest:
    """Build the empty ConfigMap that the master fills."""
    return k8s.build_manifest(
        item,
        item.cluster,
        "v1",
        "ConfigMap",
        state_name(item),
        namespace=item.ns,
        component=MASTER,
        owned=(STATE_DATA.field,),
    )


def master_rules(item: Item[TrainingJobSpec]) -> list[Body]:
    """RBAC rules of the master, beyond those of followers."""
    return [k8s.policy_rule([""], ["configmaps"], ["get", "patch"], resourceNames=[state_name(item)])]
