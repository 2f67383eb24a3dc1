"""The TensorBoard of a job: Deployment, Service, log volume."""

from __future__ import annotations

from avactl.base.variable_references import escape_references
from avactl.contracts.names import WORKSPACE_PRIORITY
from avactl.kinds.team.names import RUN_ACCOUNT, team_namespaces
from avactl.kinds.training.pod import log_path, store_env
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.networks import admit_namespaces, build_ingress_policy
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

COMPONENT = "tensorboard"
PORT = 6006


def build_tensorboard(item: Item[TrainingJobSpec], program: Program) -> list[Manifest]:
    """Return the objects of a job's TensorBoard, if it has one.

    The log volume is shared by pods on different machines, so its storage class must offer ReadWriteMany.
    """
    declared = item.spec.tensorboard
    if declared is None:
        return []
    cluster, ns, name, team = item.cluster, item.ns, f"{item.name}-{COMPONENT}", program.team(str(item.team))
    select = k8s.component_selector(item, COMPONENT)
    volumes = pods.PodVolumes(item, program)
    objects: list[Manifest] = []
    if log_path(item.spec) is not None:
        objects.append(
            k8s.volume_claim(
                item,
                program,
                cluster,
                f"{item.name}-logs",
                ns,
                declared.storage,
                use="checkpoint",
                keep=declared.deletion_policy != "delete",
                component=COMPONENT,
                mode="ReadWriteMany",
            )
        )
        volumes.claim("logs", f"{item.name}-logs", declared.logdir, read_only=True)
    container: Body = {
        "name": COMPONENT,
        "image": program.cluster_spec(cluster).images.tensorboard,
        "command": ["tensorboard"],
        "args": [f"--logdir={escape_references(declared.logdir)}", "--bind_all", f"--port={PORT}"],
        "env": store_env(item, program, declared.logdir),
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 10},
        "resources": pods.build_resources("200m", "2Gi"),
    }
    pod = pods.pod_spec(
        item, program, container, volumes=volumes, service_account=RUN_ACCOUNT, priority=WORKSPACE_PRIORITY
    )
    spec: Body = {
        "replicas": 1,
        "selector": {"matchLabels": select},
        "template": {"metadata": {"labels": k8s.object_labels(item, COMPONENT)}, "spec": pod},
    }
    deployment = k8s.build_manifest(
        item, cluster, "apps/v1", "Deployment", name, namespace=ns, component=COMPONENT, spec=spec
    )
    return [
        *objects,
        k8s.build_service(item, cluster, name, ns, select, {"http": PORT}, component=COMPONENT),
        build_ingress_policy(item, name, ns, select, [admit_namespaces(team_namespaces(team), [PORT])], COMPONENT),
        deployment,
    ]
