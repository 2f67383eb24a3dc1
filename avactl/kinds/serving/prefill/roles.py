"""Roles of a service with `prefill`: the spec of each role, and the options by which their servers differ."""

from __future__ import annotations

from dataclasses import replace

from avactl.kinds.serving.parts.prefill import DECODE, PREFILL, Prefill
from avactl.kinds.serving.runtime import ModelServer, disaggregation_of, ports, server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.program import Item

ROLE_LABEL = "llm-d.ai/role"
"""Label by which routers and llm-d's endpoint picker tell the roles of pods apart.
Source: `pkg/epp/framework/plugins/scheduling/filter/bylabel/roles.go` of llm-d-inference-scheduler 0.8."""
_PORTS_BEHIND_SIDECAR = (8200, 8201)
"""Ports of a server behind llm-d's sidecar, which has the port of the service; the second if the first is taken."""


def prefill_of(spec: ServingDeploymentSpec) -> Prefill | None:
    """Return `prefill` of a service; None if each pod does prefill and decode."""
    return spec.llm.prefill if spec.llm is not None else None


def of_role(item: Item[ServingDeploymentSpec], role: str) -> Item[ServingDeploymentSpec]:
    """Return a service as seen by one role: with the role's replicas, machines and resources."""
    spec, llm = item.spec, item.spec.llm
    own = llm.prefill if llm is not None else None
    if llm is None or own is None or role == DECODE:
        return item
    llm = llm.model_copy(
        update={
            "machines": own.machines or llm.machines,
            "tensor_parallel": own.tensor_parallel,
            "pipeline_parallel": own.pipeline_parallel,
        }
    )
    runtime = spec.runtime.model_copy(update={"args": [*spec.runtime.args, *own.args]})
    resources = own.resources or spec.resources
    changed = {"llm": llm, "runtime": runtime, "replicas": own.replicas, "resources": resources}
    found: Item[ServingDeploymentSpec] = Item(
        item.doc, item.resource.model_copy(update={"spec": spec.model_copy(update=changed)})
    )
    found.clusters, found.namespace = item.clusters, item.namespace
    return found


def path_of(item: Item[ServingDeploymentSpec], role: str) -> tuple[str, ...]:
    """Return the path of a role's resources in the document."""
    own = prefill_of(item.spec)
    return ("spec", "llm", "prefill", "resources") if own and own.resources and role == PREFILL else _RESOURCES_PATH


_RESOURCES_PATH = ("spec", "resources")


def server_of(item: Item[ServingDeploymentSpec], role: str) -> ModelServer:
    """Return the server of a role; `item` is the result of `of_role`."""
    spec, own = item.spec, prefill_of(item.spec)
    if own is None:
        return server(spec)
    public = ports(spec)["http"]
    if role == DECODE and own.sidecar is not None:
        port = behind_sidecar(spec)
        spec = spec.model_copy(update={"runtime": spec.runtime.model_copy(update={"port": port})})
    run = server(spec)
    if run.metrics is not None:  # the sidecar passes on requests for them, too
        run = replace(run, metrics=(public, run.metrics[1]))
    transfer = disaggregation_of(spec)
    options = transfer.options(role)
    worker = [*run.worker, *options] if run.worker else []
    return replace(run, args=[*run.args, *options], worker=worker, env={**run.env, **transfer.env})


def behind_sidecar(spec: ServingDeploymentSpec) -> int:
    """Return the port of a server behind llm-d's sidecar."""
    return next(port for port in _PORTS_BEHIND_SIDECAR if port != ports(spec)["http"])
