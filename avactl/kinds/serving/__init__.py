"""The ServingDeployment kind: its model, checks and lowering."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.serving import groups
from avactl.kinds.serving.check import check
from avactl.kinds.serving.llm import machines_per_replica
from avactl.kinds.serving.lower import REPLICAS, lower, replica_bounds, resource_class
from avactl.kinds.serving.parts.models import Adapter, Files, ModelDataset, ServedModel
from avactl.kinds.serving.parts.prefill import PREFILL
from avactl.kinds.serving.prefill.impact import impact
from avactl.kinds.serving.prefill.roles import of_role, prefill_of
from avactl.kinds.serving.promotion import STATE as PROMOTION_STATE
from avactl.kinds.serving.rollout.lower import OWNED
from avactl.kinds.serving.spec import (
    Batching,
    LanguageModel,
    Probe,
    Replicas,
    ResourceClass,
    Runtime,
    ServingDeployment,
    ServingDeploymentSpec,
)
from avactl.kinds.serving.weights import DATA
from avactl.kinds.serving.workload import WORKLOAD
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, Kind

__all__ = [
    "KIND",
    "Adapter",
    "Batching",
    "Files",
    "LanguageModel",
    "ModelDataset",
    "Probe",
    "Replicas",
    "ResourceClass",
    "Runtime",
    "ServedModel",
    "ServingDeployment",
    "ServingDeploymentSpec",
]


def facts(item: Item[ServingDeploymentSpec], program: Program) -> Mapping[str, Fact]:
    """Model, runtime and size of the service."""
    spec = item.spec
    least, most = replica_bounds(spec)
    result: dict[str, Fact] = {
        "model": ", ".join(f"{model.name} {'+'.join(model.live)}" for model in spec.served),
        "runtime": spec.runtime.name,
        "replicas": least if least == most else f"{least} to {most}",
    }
    if machines_per_replica(spec) > 1:
        result["machines"] = f"{machines_per_replica(spec)} a replica"
    separate = prefill_of(spec) is not None
    if separate:
        result["prefill"] = replica_bounds(of_role(item, PREFILL).spec)[0]
    counts = [_format_gpus(each, program) for each in ((item, of_role(item, PREFILL)) if separate else (item,))]
    if any(counts):
        result["GPUs"] = " + ".join(filter(None, counts))
    if spec.spot != "never":
        result["spot"] = spec.spot
    result["class"] = resource_class(spec)
    result["image"] = spec.runtime.image
    return result


def _format_gpus(item: Item[ServingDeploymentSpec], program: Program) -> str:
    """Return the GPUs of one role and their model; "" if it has none."""
    spec = item.spec
    if not spec.resources.gpus:
        return ""
    each, model = spec.resources.gpus * machines_per_replica(spec), gpu_model(program, item.cluster, spec.resources)
    least, most = replica_bounds(spec)
    return f"{each * least:g} {model}" if least == most else f"{each * least:g} to {each * most:g} {model}"


KIND = Kind(
    model=ServingDeployment,
    lower=lower,
    check=check,
    facts=facts,
    owned=(REPLICAS, groups.REPLICAS, DATA, PROMOTION_STATE, *OWNED),
    workload=WORKLOAD,
    impact=impact,
)
