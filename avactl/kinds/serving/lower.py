"""ServingDeployment → Deployment, LeaderWorkerSet or DisaggregatedSet, Services, autoscaler, disruption budget, network
policy, files."""

from __future__ import annotations

from math import ceil

from avactl.contracts import names
from avactl.contracts.pod_annotations import (
    CONFIG_DIGEST,
    GANG_SIZE,
    PROMETHEUS_PATH,
    PROMETHEUS_PORT,
    PROMETHEUS_SCRAPE,
)
from avactl.kinds.serving.autoscaling import build_autoscaler
from avactl.kinds.serving.groups import WORKER, leader_worker_set
from avactl.kinds.serving.llm import machines_per_replica
from avactl.kinds.serving.model_files import add_files, model_list, preparation_limit
from avactl.kinds.serving.parts.prefill import DECODE, ROLES
from avactl.kinds.serving.picker import build_inference_pools, route_backend, server_labels
from avactl.kinds.serving.prefill.lower import (
    ROUTER,
    ROUTER_METRICS,
    build_router,
    build_sidecar,
    disaggregated_set,
    role_annotations,
    role_set_name,
    role_sets,
)
from avactl.kinds.serving.prefill.roles import ROLE_LABEL, of_role, prefill_of, server_of
from avactl.kinds.serving.probes import add_scripts, build_probes, start_limit
from avactl.kinds.serving.promotion import with_promotion
from avactl.kinds.serving.rollout.lower import chosen_strategy, with_rollout
from avactl.kinds.serving.runtime import CONFIG, ModelServer, runtime_of, server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.kinds.serving.weights import with_weights
from avactl.kinds.team.names import RUN_ACCOUNT, team_namespaces
from avactl.program.checks.dataset_start import start_when_warm
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.exposure import build_routes, exposed_ports, ingress_rules
from avactl.program.lowering.gpu_request import gpu_annotations, share_env
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.monitoring import is_monitored, metrics_reader_rules, pod_monitor
from avactl.program.lowering.networks import admit_namespaces, admit_pods, build_ingress_policy
from avactl.program.lowering.notifications import build_notifications
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.schema.base import GROUP
from avactl.spec.schema.pod_requests import on_spot, with_pod
from avactl.spec.schema.values import duration_seconds

CLASS_LABEL = f"{GROUP}/resource-class"
"""Label with a service's resource class. Pods of one class repel each other; different classes attract."""
CLASSES = ("gpu", "cpu", "io")
PRIORITY = names.SERVING_PRIORITY
COMPONENT = "server"
REPLICAS = Owned("Deployment", ("spec", "replicas"), "the autoscaler, if `replicas` has bounds")
KILL_AFTER = 30
"""Seconds between the end of `drain` and SIGKILL."""


def resource_class(spec: ServingDeploymentSpec) -> str:
    """Resource class of a service: from its spec, else `gpu` or `cpu` by its requests."""
    return spec.resource_class or ("gpu" if spec.resources.gpus else "cpu")


def replica_bounds(spec: ServingDeploymentSpec) -> tuple[int, int]:
    """Minimum and maximum number of replicas outside a rollout; each has a pod on `machines`."""
    replicas = spec.replicas
    return (replicas, replicas) if isinstance(replicas, int) else (replicas.min, replicas.max)


def lower(item: Item[ServingDeploymentSpec], program: Program) -> list[Manifest]:
    """Return the objects of one service."""
    spec, cluster, ns = item.spec, item.cluster, item.ns
    run = server(spec)
    select = k8s.component_selector(item, COMPONENT)
    gpu = pods.GpuRequest(item, program, on_spot(with_pod(spec.resources, spec.pod), spec.spot), COMPONENT)
    objects: list[Manifest] = []
    config_name = f"{item.name}-{COMPONENT}"
    if run.files:
        objects.append(k8s.config_map(item, cluster, config_name, ns, run.files, component=COMPONENT))
    objects += model_list(item, program, COMPONENT)
    objects += gpu.claim(ns)
    separate, deadline = prefill_of(spec), preparation_limit(item, program) + start_limit(spec, run)
    entrance = select if separate is None else k8s.component_selector(item, ROUTER)
    if separate is not None:
        objects += _build_roles(item, program, gpu, config_name)
        drain = ceil(duration_seconds(spec.drain))
        objects += build_router(item, program, COMPONENT, drain, drain + KILL_AFTER, deadline)
    elif machines_per_replica(spec) > 1:
        leader, worker = (_build_template(item, program, run, gpu, config_name, each) for each in (COMPONENT, WORKER))
        objects.append(leader_worker_set(item, program, leader, worker, COMPONENT))
    else:
        template = _build_template(item, program, run, gpu, config_name, COMPONENT)
        objects.append(_build_deployment(item, select, template, deadline))
    ports: dict[str, int] = {name: run.ports[name] for name in ("http", "grpc") if name in run.ports}
    if separate is None or separate.router is not None:
        if spec.balance != "headless" or spec.expose is not None:
            objects.append(k8s.build_service(item, cluster, item.name, ns, entrance, ports, component=COMPONENT))
        if spec.balance in (None, "headless") and separate is None:
            # Client-side balancing avoids a proxy hop and can weight machines by capacity.
            name = f"{item.name}-headless"
            objects.append(
                k8s.build_service(item, cluster, name, ns, select, ports, headless=True, component=COMPONENT)
            )
    if spec.balance == "headless":
        objects = with_weights(item, program, objects, COMPONENT)
    # Also of the pods that only compute: without one of them, its group answers no requests.
    everyone = {key: value for key, value in select.items() if key != "app.kubernetes.io/component"}
    protected = everyone if machines_per_replica(spec) > 1 or separate is not None else select
    objects.append(
        k8s.disruption_budget(item, cluster, item.name, ns, protected, component=COMPONENT, maxUnavailable=1)
    )
    objects += _network_policies(item, program, run, select, everyone)
    objects += build_autoscaler(item, program, COMPONENT)
    if run.metrics is not None and is_monitored(program, cluster):
        port, path = next(name for name, number in run.ports.items() if number == run.metrics[0]), run.metrics[1]
        objects.append(pod_monitor(item, program, cluster, item.name, ns, select, path, port, COMPONENT))
    # The leaders of groups are the pods of a StatefulSet with the name of the LeaderWorkerSet.
    told = {"stateful_set" if machines_per_replica(spec) > 1 else "deployment": item.name}
    if separate is not None and chosen_strategy(spec) is None:
        told = {"stateful_sets": f"{item.name}-[0-9a-f]+-({'|'.join(ROLES)})"}
    elif separate is not None:
        told = {"stateful_sets": "|".join(role_set_name(item, role) for role in ROLES)}
    objects += build_notifications(item, program, **told)
    objects += build_inference_pools(item, program, select, run.ports["http"], COMPONENT)
    objects += build_routes(
        item,
        program,
        item.name,
        run.ports,
        component=COMPONENT,
        backend=route_backend(item),
        timeout=runtime_of(spec).answer_timeout,
    )
    objects = with_rollout(item, program, objects, run.ports, start_limit(spec, run), deadline)
    return with_promotion(item, program, objects)


def _build_roles(
    item: Item[ServingDeploymentSpec], program: Program, gpu: pods.GpuRequest, config_name: str
) -> list[Manifest]:
    """Return the objects of both roles and the GPU claim of the prefill pods; `gpu` is the request of the decode pods.

    They are roles of a DisaggregatedSet, whose controller replaces both by itself; with a rollout, a LeaderWorkerSet
    each.
    """
    found: list[Manifest] = []
    templates: dict[str, tuple[Body, Body | None]] = {}
    for role in ROLES:
        own = of_role(item, role)
        if role != DECODE:
            compute = on_spot(with_pod(own.spec.resources, own.spec.pod), own.spec.spot)
            gpu_of_role = pods.GpuRequest(item, program, compute, role)
            found += gpu_of_role.claim(item.ns)
        else:
            gpu_of_role = gpu
        run, several = server_of(own, role), machines_per_replica(own.spec) > 1
        leader = _build_template(own, program, run, gpu_of_role, config_name, COMPONENT, role)
        worker = _build_template(own, program, run, gpu_of_role, config_name, WORKER, role) if several else None
        templates[role] = leader, worker
    if chosen_strategy(item.spec) is None:
        return [*found, disaggregated_set(item, templates, COMPONENT)]
    return [*found, *role_sets(item, program, templates, COMPONENT)]


def _build_template(
    item: Item[ServingDeploymentSpec],
    program: Program,
    run: ModelServer,
    gpu: pods.GpuRequest,
    config_name: str,
    component: str,
    role: str = "",
) -> Body:
    """Return the template of the pods that answer requests, or of a group's other pods; with `prefill`, of a role."""
    spec = item.spec
    notes = {**pods.member_annotation(item), **gpu_annotations(spec.resources)}
    if run.files:
        # Servers read their options at startup: a changed digest starts new pods.
        notes[CONFIG_DIGEST.name] = k8s.short_digest(run.files)
    if run.metrics is not None and component == COMPONENT:
        port, path = run.metrics
        notes[PROMETHEUS_SCRAPE.name] = "true"
        notes[PROMETHEUS_PORT.name] = str(port)
        notes[PROMETHEUS_PATH.name] = path
    if machines_per_replica(spec) > 1:
        notes[GANG_SIZE.name] = str(machines_per_replica(spec))
    labels = {**k8s.object_labels(item, component), CLASS_LABEL: resource_class(spec), **server_labels(spec)}
    if role:
        labels[ROLE_LABEL] = role
        if chosen_strategy(spec) is not None:
            labels[names.SERVICE_VERSION] = ""  # set once the templates of both roles are complete
        notes |= role_annotations(spec, role) if component == COMPONENT else {}
    notes |= start_when_warm(item, program)
    if spec.pod is not None:
        labels, notes = {**spec.pod.labels, **labels}, {**spec.pod.annotations, **notes}
    metadata = drop_none(labels=labels, annotations=notes or None)
    return {"metadata": metadata, "spec": _build_pod(item, program, run, gpu, config_name, component, role)}


def _build_deployment(
    item: Item[ServingDeploymentSpec], select: dict[str, str], template: Body, deadline: int
) -> Manifest:
    spec = item.spec
    fixed = spec.replicas if isinstance(spec.replicas, int) else None
    body = drop_none(
        replicas=fixed,
        selector={"matchLabels": select},
        # Without a spare pod, one must stop before the next can start.
        strategy={
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": spec.max_surge, "maxUnavailable": 0 if spec.max_surge else 1},
        },
        progressDeadlineSeconds=deadline,
        template=template,
    )
    return k8s.build_manifest(
        item,
        item.cluster,
        "apps/v1",
        "Deployment",
        item.name,
        namespace=item.ns,
        component=COMPONENT,
        owned=() if fixed is not None else (REPLICAS.field,),
        spec=body,
    )


def _build_pod(
    item: Item[ServingDeploymentSpec],
    program: Program,
    run: ModelServer,
    gpu: pods.GpuRequest,
    config_name: str,
    component: str,
    role: str,
) -> Body:
    spec = item.spec
    drain = ceil(duration_seconds(spec.drain))
    serves = component == COMPONENT
    revision = names.LWS_REVISION if machines_per_replica(spec) > 1 or role else "pod-template-hash"
    volumes = _make_volumes(item, program, run, config_name, serves)
    beside = build_sidecar(spec, role) if serves else None
    if beside is not None:
        volumes.init.insert(0, beside)
    container = drop_none(
        name=component,
        image=spec.runtime.image,
        command=spec.runtime.command or run.command or None,
        args=[*(run.args if serves else run.worker), *spec.runtime.args] or None,
        env=pods.merge_env(pods.env_list(share_env(spec.resources)), pods.env_list(run.env), pods.env_list(spec.env)),
        ports=[
            {"name": name if beside is None else component, "containerPort": port} for name, port in run.ports.items()
        ]
        if serves
        else None,
        resources=pods.build_resources(spec.resources.cpu, spec.resources.memory, gpu.resources(), gpu.claims),
        # Clients learn of a removed endpoint with a delay, and not every server finishes its requests on SIGTERM. The
        # pods of a group are stopped together, and all of them are needed for an answer.
        lifecycle={"preStop": {"sleep": {"seconds": drain}}} if drain else None,
        **(build_probes(spec, run) if serves else {}),
    )
    return pods.pod_spec(
        item,
        program,
        container,
        volumes=volumes,
        gpu=gpu,
        service_account=RUN_ACCOUNT,
        priority=PRIORITY,
        settings=spec.pod,
        terminationGracePeriodSeconds=drain + KILL_AFTER,
        affinity=_build_affinity(resource_class(spec)),
        topologySpreadConstraints=[
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": k8s.component_selector(item, component)},
                # Ignore old pods of a rollout, so that they do not affect the placement of new ones.
                "matchLabelKeys": [revision],
            }
        ],
    )


def _make_volumes(
    item: Item[ServingDeploymentSpec], program: Program, run: ModelServer, config_name: str, serves: bool
) -> pods.PodVolumes:
    resources = item.spec.resources
    volumes = pods.PodVolumes(item, program)
    if run.files:
        volumes.config("config", config_name, CONFIG)
    add_files(item, program, volumes, run)
    if serves:
        add_scripts(volumes, item.spec)
    if resources.shared_memory:
        volumes.empty("shared-memory", "/dev/shm", size=resources.shared_memory, memory=True)  # noqa: S108
    return volumes


def _build_affinity(own: str) -> Body:
    """Return affinities that spread services of one resource class and co-locate different ones. Preferences only."""

    def term(weight: int, classes: list[str]) -> Body:
        return {
            "weight": weight,
            "podAffinityTerm": {
                "labelSelector": {"matchExpressions": [{"key": CLASS_LABEL, "operator": "In", "values": classes}]},
                "namespaceSelector": {},
                "topologyKey": "kubernetes.io/hostname",
            },
        }

    others = [name for name in CLASSES if name != own]
    return {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term(100, [own])]},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term(10, others)]},
    }


def _network_policies(
    item: Item[ServingDeploymentSpec],
    program: Program,
    run: ModelServer,
    select: dict[str, str],
    everyone: dict[str, str],
) -> list[Manifest]:
    """Return the NetworkPolicies of the service's pods and of its router."""
    separate, metrics = prefill_of(item.spec), run.metrics[0] if run.metrics is not None else None
    found: list[Manifest] = []
    if machines_per_replica(item.spec) > 1 or separate is not None:
        # Collective operations and transfers of the KV cache use ports that the servers choose, and trust who connects.
        found.append(
            build_ingress_policy(item, f"{item.name}-group", item.ns, everyone, [admit_pods(everyone)], WORKER)
        )
    if separate is None:
        return [*found, _network_policy(item, program, item.name, select, run.ports, metrics, COMPONENT)]
    found.append(
        _network_policy(
            item,
            program,
            item.name,
            select,
            run.ports,
            metrics,
            COMPONENT,
            teams=False,
            gateway=separate.router is None,
        )
    )
    if separate.router is not None:
        ports = {"http": run.ports["http"], "metrics": ROUTER_METRICS}
        name = f"{item.name}-{ROUTER}"
        found.append(
            _network_policy(item, program, name, k8s.component_selector(item, ROUTER), ports, ROUTER_METRICS, ROUTER)
        )
    return found


def _network_policy(
    item: Item[ServingDeploymentSpec],
    program: Program,
    name: str,
    select: dict[str, str],
    ports: dict[str, int],
    metrics: int | None,
    component: str,
    *,
    teams: bool = True,
    gateway: bool = True,
) -> Manifest:
    """Return a NetworkPolicy: own team and platform on every port, teams in `expose_to` and in the Team's `talks_to` on
    the service ports, the gateway of an exposed service on the ports that it exposes."""
    spec, cluster = item.spec, item.cluster
    platform = [namespace.name for namespace in program.cluster_spec(cluster).namespaces]
    callers = [*spec.expose_to, *program.team(str(item.team)).spec.talks_to]
    sidecars = spec.pod.sidecars if spec.pod and component == COMPONENT else ()
    of_sidecars = [(port.container_port, port.protocol) for sidecar in sidecars for port in sidecar.ports]
    open_ports: list[int | tuple[int, str]] = [*ports.values(), *of_sidecars]
    rules = [admit_namespaces([*_of_teams(program, [str(item.team)]), *platform], open_ports)]
    if callers and teams:
        served = [port for name, port in ports.items() if name != "metrics"]
        rules.append(admit_namespaces(_of_teams(program, callers), served))
    if gateway:
        rules += ingress_rules(item, program, *exposed_ports(item, ports))
    if metrics is not None:
        rules += metrics_reader_rules(program, cluster, metrics)
    return build_ingress_policy(item, name, item.ns, select, rules, component)


def _of_teams(program: Program, teams: list[str]) -> list[str]:
    return [name for team in teams for name in team_namespaces(program.team(team))]
