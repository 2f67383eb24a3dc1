"""Balancing by an endpoint picker → an InferencePool, from which the gateway asks the picker for a pod per request.

With a rollout there are two pools, each with a picker: one picker serves one pool. Outside of rollouts both select the
running version, and one of them gets all requests. For a new version the serving daemon directs the other one to its
pods, and divides the requests by the weights of the route. So they change their parts with each version, and the picker
of the new version already knows its pods when it has all requests.

Sources: `api/v1/inferencepool_types.go`, `docs/proposals/004-endpoint-picker-protocol` and
`conformance/tests/gateway_weighted_two_pools.go` of sigs.k8s.io/gateway-api-inference-extension 1.6;
`pkg/epp/server/options.go` and `config/charts` of llm-d-inference-scheduler 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from avactl.contracts import names
from avactl.contracts.pod_annotations import PROMETHEUS_PATH, PROMETHEUS_PORT, PROMETHEUS_SCRAPE
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.parts.picker import EndpointPicker
from avactl.kinds.serving.parts.rollout import Canary
from avactl.kinds.serving.rollout.lower import POOL_VERSIONS, chosen_strategy, key_of, pool_names
from avactl.kinds.serving.runtime import runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.checks.credentials import argument_problems, value_problems
from avactl.program.checks.words import word_problems
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.exposure import ingress_rules
from avactl.program.lowering.monitoring import is_monitored, metrics_reader_rules, pod_monitor
from avactl.program.lowering.networks import build_ingress_policy
from avactl.program.lowering.rights import build_account
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

GROUP, KIND = "inference.networking.k8s.io", "InferencePool"
COMPONENT = "picker"
ENGINE_LABEL = "llm-d.ai/engine-type"
"""Label of servers by which llm-d's picker knows the names of their metrics."""
_HEALTH_PORT, _METRICS_PORT = 9003, 9090
PICKER_PATH = ("spec", "llm", "endpointPicker")


def endpoint_picker(spec: ServingDeploymentSpec) -> EndpointPicker | None:
    """Return the endpoint picker of a service; None if requests are balanced without one."""
    return spec.llm.endpoint_picker if spec.llm is not None else None


def count_pickers(spec: ServingDeploymentSpec) -> int:
    """Return the number of pods with endpoint pickers that avactl runs."""
    chosen = endpoint_picker(spec)
    if chosen is None or chosen.image is None:
        return 0
    return 1 if chosen_strategy(spec) is None else 2


def server_labels(spec: ServingDeploymentSpec) -> dict[str, str]:
    """Return the labels of servers that a picker of avactl's needs."""
    return {ENGINE_LABEL: spec.runtime.name} if count_pickers(spec) else {}


def route_backend(item: Item[ServingDeploymentSpec]) -> Body | None:
    """Return what the service's route sends requests to instead of its Service; None for the Service."""
    return None if endpoint_picker(item.spec) is None else {"group": GROUP, "kind": KIND, "name": item.name}


def build_inference_pools(
    item: Item[ServingDeploymentSpec], program: Program, select: dict[str, str], port: int, component: str
) -> list[Manifest]:
    """Return the pools of a service's pods, their pickers, and the rules that let the gateway in to these; none
    without a picker."""
    chosen = endpoint_picker(item.spec)
    if chosen is None:
        return []
    found: list[Manifest] = [] if chosen.image is None else _build_account(item)
    pools = pool_names(item)
    for pool in pools:
        service = f"{pool}-{COMPONENT}" if chosen.service is None else chosen.service
        spec: Body = {
            "selector": {"matchLabels": select},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {
                "name": service,
                "port": {"number": chosen.port},
                "failureMode": "FailOpen" if chosen.fail_open else "FailClose",
            },
        }
        found.append(
            k8s.build_manifest(
                item,
                item.cluster,
                f"{GROUP}/v1",
                KIND,
                pool,
                namespace=item.ns,
                component=component,
                # Of groups, the label has dots, and needs no entry: the object never has it.
                owned=(POOL_VERSIONS[0].field,) if len(pools) > 1 else (),
                spec=spec,
            )
        )
        rules = list(ingress_rules(item, program, chosen.port))
        labels = chosen.pods
        if chosen.image is not None:
            own = COMPONENT if pool == item.name else f"{COMPONENT}-{pool.removeprefix(f'{item.name}-')}"
            labels = k8s.component_selector(item, own)
            found += _build_picker(item, program, chosen, pool, own)
            rules += metrics_reader_rules(program, item.cluster, _METRICS_PORT)
        found.append(build_ingress_policy(item, f"{pool}-{COMPONENT}", item.ns, labels, rules, COMPONENT))
    return found


def _build_account(item: Item[ServingDeploymentSpec]) -> list[Manifest]:
    """Return the account of a service's pickers, and its rights."""
    watch = ["get", "list", "watch"]
    rules = [
        k8s.policy_rule([""], ["pods"], watch),
        k8s.policy_rule([GROUP], ["inferencepools"], watch),
        k8s.policy_rule(list(names.PICKER_GROUPS), list(names.PICKER_KINDS), watch),
    ]
    return build_account(item, f"{item.name}-{COMPONENT}", COMPONENT, rules)


def _build_picker(
    item: Item[ServingDeploymentSpec], program: Program, chosen: EndpointPicker, pool: str, component: str
) -> list[Manifest]:
    """Return the Deployment and the Service of the picker of one pool.

    It is one pod: what it knows of cached prefixes and its own decisions is in its memory.
    """
    name, select = f"{pool}-{COMPONENT}", k8s.component_selector(item, component)
    health = {"grpc": {"port": _HEALTH_PORT, "service": "inference-extension"}}
    container = k8s.drop_none(
        name=COMPONENT,
        image=chosen.image,
        args=[
            f"--pool-name={pool}",
            f"--pool-namespace={item.ns}",
            f"--grpc-port={chosen.port}",
            f"--grpc-health-port={_HEALTH_PORT}",
            f"--metrics-port={_METRICS_PORT}",
            # By reviews of tokens, a right in the whole cluster; the NetworkPolicy lets in Prometheus only.
            "--metrics-endpoint-auth=false",
            "--tracing=false",
            *([f"--config-text={k8s.json_line(chosen.config)}"] if chosen.config is not None else []),
            *chosen.args,
        ],
        env=pods.env_list(pods.NO_GPUS),
        ports=[
            {"name": "grpc", "containerPort": chosen.port},
            {"name": "health", "containerPort": _HEALTH_PORT},
            {"name": "metrics", "containerPort": _METRICS_PORT},
        ],
        resources=pods.build_resources(chosen.cpu, chosen.memory),
        readinessProbe={**health, "periodSeconds": 2},
        # Not before it has read its pool, which an administrator may create later.
        livenessProbe={"tcpSocket": {"port": _HEALTH_PORT}, "periodSeconds": 10, "failureThreshold": 6},
    )
    pod = pods.pod_spec(
        item,
        program,
        container,
        service_account=f"{item.name}-{COMPONENT}",
        priority=names.SERVING_PRIORITY,
        automountServiceAccountToken=True,
    )
    notes = {
        PROMETHEUS_SCRAPE.name: "true",
        PROMETHEUS_PORT.name: str(_METRICS_PORT),
        PROMETHEUS_PATH.name: "/metrics",
    }
    found = [
        k8s.build_manifest(
            item,
            item.cluster,
            "apps/v1",
            "Deployment",
            name,
            namespace=item.ns,
            component=component,
            spec={
                "replicas": 1,
                "selector": {"matchLabels": select},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {
                    "metadata": {"labels": k8s.object_labels(item, component), "annotations": notes},
                    "spec": pod,
                },
            },
        ),
        k8s.build_service(item, item.cluster, name, item.ns, select, {"grpc": chosen.port}, component=component),
    ]
    if is_monitored(program, item.cluster):
        found.append(pod_monitor(item, program, item.cluster, name, item.ns, select, "/metrics", "metrics", component))
    return found


def picker_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield what a service with an endpoint picker lacks, or cannot have."""
    spec, chosen = item.spec, endpoint_picker(item.spec)
    if chosen is None or runtime_of(spec).llm is None:
        return
    yield from argument_problems(item, chosen.args, (*PICKER_PATH, "args"))
    yield from value_problems(
        item,
        chosen.config or {},
        (*PICKER_PATH, "config"),
        "`config` is an argument of a pod: name the `service` of a picker that the platform installs with a Secret",
    )
    if spec.expose is None or spec.expose.host is None:
        yield Diagnostic(
            "missing-key",
            f"`endpointPicker` is asked by the gateway, and {item} is not exposed through it",
            item.span(*PICKER_PATH, key=True),
            hint="add `expose: {host: …}`, or remove `endpointPicker`",
        )
        return
    if chosen.service in (item.name, f"{item.name}-headless"):
        yield Diagnostic(
            "invalid-value",
            f"spec.llm.endpointPicker.service: `{chosen.service}` is the Service of the model's own pods",
            item.span(*PICKER_PATH, "service"),
            hint="write the Service of the endpoint picker",
        )
    yield from word_problems(item, chosen.args, (*PICKER_PATH, "args"))
    yield from _check_rollout(item, chosen)
    offered = program.cluster_spec(item.cluster).exposure
    if offered is not None and (offered.gateway is None or not offered.gateway.inference_pools):
        cluster = program.cluster(item.cluster)
        way = "ingress" if offered.gateway is None else "gateway"
        yield Diagnostic(
            "missing-gateway",
            f"`endpointPicker` needs a Gateway that routes to InferencePools, which cluster {cluster.name} does not "
            "declare",
            item.span(*PICKER_PATH, key=True),
            hint=f"write `inferencePools: true` in `exposure.gateway` of Cluster {cluster.name} if its Gateway can, or "
            "remove `endpointPicker`",
            notes=(Note(cluster.span("spec", "exposure", way, key=True), f"the {way}"),),
        )


def _check_rollout(item: Item[ServingDeploymentSpec], chosen: EndpointPicker) -> Iterator[Diagnostic]:
    """Yield rollouts for which requests cannot be divided between two pools."""
    rollout = chosen_strategy(item.spec)
    if rollout is None:
        return
    key = key_of(rollout)
    note = Note(item.span("spec", "rollout", key, key=True), "the rollout")
    if chosen.image is None:
        yield Diagnostic(
            "conflicting-keys",
            f"`{key}` needs a picker for each version, and `service` is one: a picker serves one InferencePool",
            item.span(*PICKER_PATH, "service", key=True),
            hint="write `image: …` instead of `service` and `pods`: avactl then runs both pickers",
            notes=(note,),
        )
    elif isinstance(rollout, Canary) and rollout.traffic == "replicas":
        yield Diagnostic(
            "conflicting-keys",
            "with `endpointPicker`, requests do not follow the number of pods: the picker chooses by their load",
            item.span("spec", "rollout", key, "traffic"),
            hint="remove `traffic`: the gateway divides requests between the pools of both versions",
            notes=(Note(item.span(*PICKER_PATH, key=True), "the endpoint picker"),),
        )
