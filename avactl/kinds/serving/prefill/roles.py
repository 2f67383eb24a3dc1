"""Roles of a service with `prefill`: the spec of each role, and the options by which their servers differ.

Sources: vLLM 0.33.0 (`vllm/config/kv_transfer.py`, `vllm/envs.py`, `vllm/distributed/kv_transfer/kv_connector/v1/nixl`
for the connector, its roles, its port and what it compares between two servers), SGLang 0.5.23
(`sglang/srt/arg_groups/fields/disagg.py`, `sglang/srt/disaggregation/common/conn.py`).
"""

from __future__ import annotations

from dataclasses import replace

from avactl.kinds.serving.parts.prefill import Prefill
from avactl.kinds.serving.runtimes import Server, ports, server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.program import Item
from avactl.spec.schema.base import EnvSource

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)
ROLE_LABEL = "llm-d.ai/role"
"""Label by which routers and llm-d's endpoint picker tell the roles of pods apart.
Source: `pkg/epp/framework/plugins/scheduling/filter/bylabel/roles.go` of llm-d-inference-scheduler 0.8."""
NIXL_PORT = 5600
"""Port of the NIXL side channel, by which vLLM's pods locate the KV cache of a prompt."""
BOOTSTRAP_PORT = 8998
"""Port of the bootstrap server, by which SGLang's decode pods find prefill pods."""
_BEHIND = (8200, 8201)
"""Ports of a server behind llm-d's sidecar, which has the port of the service; the second if the first is taken."""


def prefill(spec: ServingDeploymentSpec) -> Prefill | None:
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
    own = prefill(item.spec)
    return ("spec", "llm", "prefill", "resources") if own and own.resources and role == PREFILL else _RESOURCES


_RESOURCES = ("spec", "resources")


def server_of(item: Item[ServingDeploymentSpec], role: str) -> Server:
    """Return the server of a role; `item` is the result of `of_role`."""
    spec, own = item.spec, prefill(item.spec)
    if own is None:
        return server(spec)
    public = ports(spec)["http"]
    if role == DECODE and own.sidecar is not None:
        port = behind_sidecar(spec)
        spec = spec.model_copy(update={"runtime": spec.runtime.model_copy(update={"port": port})})
    run = server(spec)
    if run.metrics is not None:  # the sidecar passes on requests for them, too
        run = replace(run, metrics=(public, run.metrics[1]))
    options = _vllm(role) if spec.runtime.name == "vllm" else _sglang(role)
    env = dict(run.env)
    if spec.runtime.name == "vllm":
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = EnvSource(field="status.podIP")
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(NIXL_PORT)
    worker = [*run.worker, *options] if run.worker else []
    return replace(run, args=[*run.args, *options], worker=worker, env=env)


def behind_sidecar(spec: ServingDeploymentSpec) -> int:
    """Return the port of a server behind llm-d's sidecar."""
    return next(port for port in _BEHIND if port != ports(spec)["http"])


def _vllm(role: str) -> list[str]:
    # The handshake fails if version, model or vLLM differ. The decode pod then recomputes the prompt, as it does if the
    # prefill pod is gone; by default, the request would fail.
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if role == PREFILL else "kv_consumer",
        "kv_load_failure_policy": "recompute",
    }
    return [f"--kv-transfer-config={k8s.line(config)}"]


def _sglang(role: str) -> list[str]:
    return [
        f"--disaggregation-mode={role}",
        "--disaggregation-transfer-backend=nixl",
        f"--disaggregation-bootstrap-port={BOOTSTRAP_PORT}",
    ]
