"""Services with `prefill` → a DisaggregatedSet with two roles, or two LeaderWorkerSets, and a router for both.

The routers of all runtimes have the same options for service discovery, and answer `/readiness` once they know a pod of
each role.

Sources: `api/disaggregatedset/v1` and `pkg/controllers/disaggregatedset` of sigs.k8s.io/lws 0.9; `cmd/pd-sidecar` and
`docs/disaggregation.md` of llm-d-inference-scheduler 0.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import PROMETHEUS_PATH, PROMETHEUS_PORT, PROMETHEUS_SCRAPE
from avactl.kinds.serving.groups import groups_of, leader_worker_set
from avactl.kinds.serving.parts.prefill import DECODE, PREFILL, ROLES
from avactl.kinds.serving.prefill.roles import ROLE_LABEL, behind_sidecar, of_role, prefill_of
from avactl.kinds.serving.runtime import disaggregation_of, ports
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.monitoring import is_monitored, pod_monitor
from avactl.program.lowering.rights import build_account
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

API, KIND = "disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"
ROUTER = "router"
"""Component of the router's pods."""
ROUTER_METRICS = 29000
_SIDECAR_NAME = "routing"


def disaggregated_set(
    item: Item[ServingDeploymentSpec], templates: Mapping[str, tuple[Body, Body | None]], component: str
) -> Manifest:
    """Return the DisaggregatedSet of a service, from the leader and worker templates of each role.

    Its controller creates a LeaderWorkerSet for each role, and replaces both together.
    """
    labels = k8s.object_labels(item, component)
    roles = [
        {
            "name": role,
            "metadata": {"labels": {**labels, ROLE_LABEL: role}},
            "spec": groups_of(of_role(item, role).spec, *templates[role]),
        }
        for role in ROLES
    ]
    return k8s.build_manifest(
        item, item.cluster, API, KIND, item.name, namespace=item.ns, component=component, spec={"roles": roles}
    )


def role_set_name(item: Item[ServingDeploymentSpec], role: str) -> str:
    """Return the name of the LeaderWorkerSet of a role of a service with a rollout."""
    return item.name if role == DECODE else f"{item.name}-{role}"


def role_sets(
    item: Item[ServingDeploymentSpec],
    program: Program,
    templates: Mapping[str, tuple[Body, Body | None]],
    component: str,
) -> list[Manifest]:
    """Return a LeaderWorkerSet for each role, which the serving daemon rolls out together; arguments as of
    `disaggregated_set`.

    The controller of a DisaggregatedSet refuses a `partition`, and replaces the groups of both roles by itself.
    """
    found = []
    for role in ROLES:
        manifest = leader_worker_set(
            of_role(item, role), program, *templates[role], component, role_set_name(item, role)
        )
        manifest.item = item
        manifest.body["metadata"]["labels"][ROLE_LABEL] = role
        found.append(manifest)
    return found


def role_annotations(spec: ServingDeploymentSpec, role: str) -> dict[str, str]:
    """Return the annotations that tell routers the ports of a pod."""
    return dict(disaggregation_of(spec).prefill_annotations) if role == PREFILL else {}


def build_sidecar(spec: ServingDeploymentSpec, role: str) -> Body | None:
    """Return llm-d's sidecar of the decode pods; None for other pods, and with a router.

    It listens on the port of the service, sends the prompt to the prefill pod that the endpoint picker has chosen, and
    then forwards the request to the server in its own pod.
    """
    own = prefill_of(spec)
    if own is None or own.sidecar is None or role != DECODE:
        return None
    port, connector = ports(spec)["http"], disaggregation_of(spec).connector
    return {
        "name": _SIDECAR_NAME,
        "image": own.sidecar.image,
        "args": [
            f"--port={port}",
            f"--vllm-port={behind_sidecar(spec)}",
            f"--kv-connector={connector}",
            "--secure-proxy=false",
            *own.sidecar.args,
        ],
        "env": pods.env_list(pods.NO_GPUS),
        "ports": [{"name": "http", "containerPort": port}],
        "resources": pods.build_resources(own.sidecar.cpu, own.sidecar.memory),
        "securityContext": pods.container_security(),
        # It starts before the server, and ends after it.
        "restartPolicy": "Always",
    }


def build_router(
    item: Item[ServingDeploymentSpec], program: Program, component: str, drain: int, grace: int, deadline: int
) -> list[Manifest]:
    """Return the objects of a router, whose account may watch the namespace's pods; none without `router`.

    `drain`, `grace`: seconds that a terminating pod still answers, and after which it is killed. `deadline`: seconds
    after which a rollout counts as stalled; the router is not ready before a pod of each role is.
    """
    own = prefill_of(item.spec)
    if own is None or own.router is None:
        return []
    name, select = f"{item.name}-{ROUTER}", k8s.component_selector(item, ROUTER)

    def make(api: str, kind: str, **fields: Any) -> Manifest:
        return k8s.build_manifest(item, item.cluster, api, kind, name, namespace=item.ns, component=ROUTER, **fields)

    port = ports(item.spec)["http"]
    transfer = disaggregation_of(item.spec)
    container = k8s.drop_none(
        name=ROUTER,
        image=own.router.image,
        command=list(transfer.router),
        args=[*transfer.router_options, *_discovery_options(item, component, port), *own.router.args],
        ports=[{"name": "http", "containerPort": port}, {"name": "metrics", "containerPort": ROUTER_METRICS}],
        resources=pods.build_resources(own.router.cpu, own.router.memory),
        lifecycle={"preStop": {"sleep": {"seconds": drain}}} if drain else None,
        readinessProbe={"httpGet": {"path": "/readiness", "port": port}, "periodSeconds": 5, "timeoutSeconds": 5},
        livenessProbe={
            "httpGet": {"path": "/liveness", "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
            "initialDelaySeconds": 10,
        },
    )
    pod = pods.pod_spec(
        item,
        program,
        container,
        service_account=name,
        priority=names.SERVING_PRIORITY,
        automountServiceAccountToken=True,
        terminationGracePeriodSeconds=grace,
    )
    notes = {
        PROMETHEUS_SCRAPE.name: "true",
        PROMETHEUS_PORT.name: str(ROUTER_METRICS),
        PROMETHEUS_PATH.name: "/metrics",
    }
    found = [
        *build_account(item, name, ROUTER, [k8s.policy_rule([""], ["pods"], ["list", "watch"])]),
        make(
            "apps/v1",
            "Deployment",
            spec={
                "replicas": own.router.replicas,
                "selector": {"matchLabels": select},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "progressDeadlineSeconds": deadline,
                "template": {
                    "metadata": {"labels": k8s.object_labels(item, ROUTER), "annotations": notes},
                    "spec": pod,
                },
            },
        ),
    ]
    if is_monitored(program, item.cluster):
        found.append(pod_monitor(item, program, item.cluster, name, item.ns, select, "/metrics", "metrics", ROUTER))
    return found


def _discovery_options(item: Item[ServingDeploymentSpec], component: str, port: int) -> list[str]:
    """Return the service-discovery options of a router, for the pods of both roles that answer requests."""
    own = [f"{key}={value}" for key, value in k8s.component_selector(item, component).items()]
    return [
        "--service-discovery",
        f"--service-discovery-namespace={item.ns}",
        f"--service-discovery-port={port}",
        "--prefill-selector",
        *own,
        f"{ROLE_LABEL}={PREFILL}",
        "--decode-selector",
        *own,
        f"{ROLE_LABEL}={DECODE}",
        "--host=0.0.0.0",
        f"--port={port}",
        "--prometheus-host=0.0.0.0",
        f"--prometheus-port={ROUTER_METRICS}",
    ]
