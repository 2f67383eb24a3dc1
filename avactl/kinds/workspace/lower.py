"""Workspace → StatefulSet, Service, claim of the home, network policy, editor's configuration."""

from __future__ import annotations

from math import ceil

from avactl.contracts.names import CONTROLLER, WORKSPACE_PRIORITY
from avactl.contracts.pod_annotations import CONFIG_DIGEST, PREEMPTIBLE, STOP_WHEN_DONE
from avactl.kinds.team.names import RUN_ACCOUNT, team_namespaces
from avactl.kinds.workspace.spec import WorkspaceSpec
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.exposure import build_routes, ingress_rules
from avactl.program.lowering.gpu_request import gpu_annotations
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.networks import admit_namespaces, build_ingress_policy
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.schema.compute import Compute
from avactl.spec.schema.pod_requests import on_spot, with_pod
from avactl.spec.schema.values import duration_seconds

COMPONENT = "workspace"
REPLICAS = Owned("StatefulSet", ("spec", "replicas"), "the scheduler and users, in workspaces with `whenIdle: stop`")
_JUPYTER_DIRECTORY = "/etc/avactl/jupyter"


def workspace_image(item: Item[WorkspaceSpec], program: Program) -> str | None:
    """Return the image: the workspace's own, else the team's default."""
    found: str | None = item.spec.image or program.team(str(item.team)).spec.workspace.image
    return found


def home_bytes(item: Item[WorkspaceSpec], program: Program) -> str:
    """Return the size of the home directory in bytes: the workspace's own, else the team's default."""
    return str(item.spec.storage or program.team(str(item.team)).spec.workspace.storage)


def home_claim(item: Item[WorkspaceSpec]) -> str:
    """Return the name of the claim of the home directory."""
    return f"{item.name}-home"


def lower(item: Item[WorkspaceSpec], program: Program) -> list[Manifest]:
    """Return the objects of one workspace."""
    spec, cluster, ns = item.spec, item.cluster, item.ns
    select = k8s.component_selector(item, COMPONENT)
    config = _editor_config(item)
    defaults = program.team(str(item.team)).spec.workspace
    compute = Compute(
        cpu=spec.cpu or defaults.cpu,
        memory=spec.memory or defaults.memory,
        gpus=spec.gpus,
        gpu=spec.gpu,
        pool=spec.pool,
        tolerates=with_pod(spec, spec.pod).tolerates,
    )
    gpu = pods.GpuRequest(item, program, on_spot(compute, spec.spot), COMPONENT)
    home = k8s.volume_claim(
        item,
        program,
        cluster,
        home_claim(item),
        ns,
        home_bytes(item, program),
        use="workspace",
        keep=spec.deletion_policy != "delete",
        component=COMPONENT,
        mode="ReadWriteMany" if spec.shared_home else "ReadWriteOnce",
    )
    objects = [home]
    if config:
        objects.append(k8s.config_map(item, cluster, f"{item.name}-editor", ns, config, component=COMPONENT))
    objects += gpu.claim(ns)
    ports = {"http": spec.port}
    objects.append(k8s.build_service(item, cluster, item.name, ns, select, ports, headless=True, component=COMPONENT))
    objects.append(_network_policy(item, program, select))
    if spec.expose is not None:
        # Not all gateways route to a headless Service, and the StatefulSet needs that one.
        web = f"{item.name}-web"
        objects.append(k8s.build_service(item, cluster, web, ns, select, ports, component=COMPONENT))
        objects += build_routes(item, program, web, ports, component=COMPONENT)
    stops = spec.when_idle == "stop"
    if stops:
        objects += _stop_rights(item, program)
    # A running workspace that may stop is started and stopped by others; a new StatefulSet has one replica.
    replicas = None if stops and spec.running else int(spec.running)
    body = drop_none(
        replicas=replicas,
        serviceName=item.name,
        selector={"matchLabels": select},
        template=_build_template(item, program, gpu, compute, config),
    )
    owned = (REPLICAS.field,) if replicas is None else ()
    objects.append(
        k8s.build_manifest(
            item,
            cluster,
            "apps/v1",
            "StatefulSet",
            item.name,
            namespace=ns,
            component=COMPONENT,
            owned=owned,
            spec=body,
        )
    )
    return objects


def _stop_rights(item: Item[WorkspaceSpec], program: Program) -> list[Manifest]:
    """Return the right of the scheduler to scale this StatefulSet, and no other; an admission policy limits it to 0."""
    rule = k8s.policy_rule(["apps"], ["statefulsets/scale"], ["patch"], resourceNames=[item.name])
    scheduler = account_subject(CONTROLLER, program.cluster_spec(item.cluster).system_namespace)
    return build_role(item, item.cluster, f"{item.name}-stop", str(item.ns), [rule], [scheduler], COMPONENT)


def _build_template(
    item: Item[WorkspaceSpec], program: Program, gpu: pods.GpuRequest, compute: Compute, config: dict[str, str]
) -> Body:
    spec = item.spec
    notes = {**pods.member_annotation(item), **gpu_annotations(compute)}
    if config:
        notes[CONFIG_DIGEST.name] = k8s.short_digest(config)
    if spec.preemptible:
        notes[PREEMPTIBLE.name] = "true"
    if spec.when_idle == "stop":
        notes[STOP_WHEN_DONE.name] = COMPONENT
    volumes = pods.PodVolumes(item, program)
    volumes.claim("home", home_claim(item), spec.home)
    # Shared memory for data loaders; its content counts towards the container's memory.
    volumes.empty("shared-memory", "/dev/shm", memory=True)  # noqa: S108
    if config:
        volumes.config("editor", f"{item.name}-editor", _JUPYTER_DIRECTORY)
    volumes.datasets(spec.datasets)
    volumes.buckets()
    container = drop_none(
        name=COMPONENT,
        image=workspace_image(item, program),
        command=spec.command or None,
        args=spec.args or None,
        env=_build_env(item, bool(config)),
        workingDir=spec.home,
        ports=[{"name": "http", "containerPort": spec.port}],
        resources=pods.build_resources(compute.cpu, compute.memory, gpu.resources(), gpu.claims),
    )
    pod = pods.pod_spec(
        item,
        program,
        container,
        volumes=volumes,
        gpu=gpu,
        service_account=RUN_ACCOUNT,
        priority=WORKSPACE_PRIORITY,
        settings=spec.pod,
    )
    labels = k8s.object_labels(item, COMPONENT)
    if spec.pod is not None:
        labels, notes = {**spec.pod.labels, **labels}, {**spec.pod.annotations, **notes}
    return {"metadata": {"labels": labels, "annotations": notes}, "spec": pod}


def _build_env(item: Item[WorkspaceSpec], culled: bool) -> list[Body]:
    spec = item.spec
    own = {"HOME": spec.home}
    if culled:
        own["JUPYTER_CONFIG_PATH"] = _JUPYTER_DIRECTORY
        own["AVACTL_IDLE_TIMEOUT"] = str(ceil(duration_seconds(spec.idle_timeout)))
    return pods.merge_env(pods.env_list(own), pods.env_list(spec.env))


def _editor_config(item: Item[WorkspaceSpec]) -> dict[str, str]:
    """Return Jupyter's configuration that ends idle kernels and terminals; empty if `idleTimeout` is 0.

    Only the editor can detect idle kernels. With `whenIdle: stop`, the server itself ends, too, with exit code 0.
    Source: jupyter_server's MappingKernelManager and ServerApp (`shutdown_no_activity`), and jupyter_server_terminals'
    TerminalManager, seconds; read from JUPYTER_CONFIG_PATH.
    """
    timeout = ceil(duration_seconds(item.spec.idle_timeout))
    if not timeout:
        return {}
    interval = min(300, timeout)
    kernels = {"cull_idle_timeout": timeout, "cull_interval": interval, "cull_connected": True}
    terminals = {"cull_inactive_timeout": timeout, "cull_interval": interval}
    config = {"MappingKernelManager": kernels, "TerminalManager": terminals}
    if item.spec.when_idle == "stop":
        config["ServerApp"] = {"shutdown_no_activity_timeout": timeout}
    return {"jupyter_server_config.json": k8s.json_text(config)}


def _network_policy(item: Item[WorkspaceSpec], program: Program, select: dict[str, str]) -> Manifest:
    """Return the NetworkPolicy: only team, platform and, if it is exposed, the gateway reach the editor; users
    connect by `kubectl port-forward` or the gateway."""
    names = {*team_namespaces(program.team(str(item.team)))}
    names.update(namespace.name for namespace in program.cluster_spec(item.cluster).namespaces)
    rules = [admit_namespaces(names, [item.spec.port]), *ingress_rules(item, program, item.spec.port)]
    return build_ingress_policy(item, item.name, item.ns, select, rules, COMPONENT)
