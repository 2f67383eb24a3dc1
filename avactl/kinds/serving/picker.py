"""Balancing by an endpoint picker → an InferencePool, from which the gateway asks the picker for a pod per request.

Sources, of sigs.k8s.io/gateway-api-inference-extension 1.6: `api/v1/inferencepool_types.go`, and
`docs/proposals/004-endpoint-picker-protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.parts.picker import EndpointPicker
from avactl.kinds.serving.rollout.lower import chosen_strategy, key_of
from avactl.kinds.serving.runtime import runtime_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.exposure import ingress_rules
from avactl.program.lowering.networks import build_ingress_policy
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

GROUP, KIND = "inference.networking.k8s.io", "InferencePool"
COMPONENT = "picker"
_PICKER_PATH = ("spec", "llm", "endpointPicker")


def endpoint_picker(spec: ServingDeploymentSpec) -> EndpointPicker | None:
    """Return the endpoint picker of a service; None if requests are balanced without one."""
    return spec.llm.endpoint_picker if spec.llm is not None else None


def route_backend(item: Item[ServingDeploymentSpec]) -> Body | None:
    """Return what the service's route sends requests to instead of its Service; None for the Service."""
    return None if endpoint_picker(item.spec) is None else {"group": GROUP, "kind": KIND, "name": item.name}


def build_inference_pool(
    item: Item[ServingDeploymentSpec], program: Program, select: dict[str, str], port: int, component: str
) -> list[Manifest]:
    """Return the pool of a service's pods, and the rule that lets the gateway in to the picker; none without one."""
    chosen = endpoint_picker(item.spec)
    if chosen is None:
        return []
    spec: Body = {
        "selector": {"matchLabels": select},
        "targetPorts": [{"number": port}],
        "endpointPickerRef": {
            "name": chosen.service,
            "port": {"number": chosen.port},
            "failureMode": "FailOpen" if chosen.fail_open else "FailClose",
        },
    }
    rules = ingress_rules(item, program, chosen.port)
    return [
        k8s.build_manifest(
            item, item.cluster, f"{GROUP}/v1", KIND, item.name, namespace=item.ns, component=component, spec=spec
        ),
        build_ingress_policy(item, f"{item.name}-{COMPONENT}", item.ns, chosen.pods, rules, COMPONENT),
    ]


def picker_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield what a service with an endpoint picker lacks, or cannot have."""
    spec, chosen = item.spec, endpoint_picker(item.spec)
    if chosen is None or runtime_of(spec).llm is None:
        return
    if spec.expose is None or spec.expose.host is None:
        yield Diagnostic(
            "missing-key",
            f"`endpointPicker` is asked by the gateway, and {item} is not exposed through it",
            item.span(*_PICKER_PATH, key=True),
            hint="add `expose: {host: …}`, or remove `endpointPicker`",
        )
        return
    if chosen.service in (item.name, f"{item.name}-headless"):
        yield Diagnostic(
            "invalid-value",
            f"spec.llm.endpointPicker.service: `{chosen.service}` is the Service of the model's own pods",
            item.span(*_PICKER_PATH, "service"),
            hint="write the Service of the endpoint picker",
        )
    rollout = chosen_strategy(spec)
    if rollout is not None:
        key = key_of(rollout)
        yield Diagnostic(
            "conflicting-keys",
            f"`{key}` moves requests between Services, and with `endpointPicker` the picker chooses among all pods",
            item.span(*_PICKER_PATH, key=True),
            hint="remove one of them",
            notes=(Note(item.span("spec", "rollout", key, key=True), "the rollout"),),
        )
    offered = program.cluster_spec(item.cluster).exposure
    if offered is not None and (offered.gateway is None or not offered.gateway.inference_pools):
        cluster = program.cluster(item.cluster)
        way = "ingress" if offered.gateway is None else "gateway"
        yield Diagnostic(
            "missing-gateway",
            f"`endpointPicker` needs a Gateway that routes to InferencePools, which cluster {cluster.name} does not "
            "declare",
            item.span(*_PICKER_PATH, key=True),
            hint=f"write `inferencePools: true` in `exposure.gateway` of Cluster {cluster.name} if its Gateway can, or "
            "remove `endpointPicker`",
            notes=(Note(cluster.span("spec", "exposure", way, key=True), f"the {way}"),),
        )
