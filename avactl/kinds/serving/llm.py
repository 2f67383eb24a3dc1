"""Large language models: how a model is split over GPUs, and its adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from avactl.kinds.serving.parts.models import ADAPTERS, Adapter
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.values import percent_number

LEADER, RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
"""Address of the leader of a group, and number of the pod in it, which Kubernetes expands in arguments: the webhook of
LeaderWorkerSet puts these variables before all others. Source: `pkg/utils/pod/pod_utils.go` of lws 0.9."""


class Parallelism(NamedTuple):
    """Split of a model over the `tensor * pipeline` GPUs of a replica."""

    tensor: int
    pipeline: int


def machines_per_replica(spec: ServingDeploymentSpec) -> int:
    """Return the pods of one replica, each on a machine of its own."""
    return 1 if spec.llm is None else spec.llm.machines


def has_groups(spec: ServingDeploymentSpec) -> bool:
    """Return True if the replicas are groups of LeaderWorkerSets: with several machines each, or with roles."""
    return machines_per_replica(spec) > 1 or (spec.llm is not None and spec.llm.prefill is not None)


def split_model(spec: ServingDeploymentSpec) -> Parallelism:
    """Return the split of a spec. Without keys: each layer over the GPUs of a pod, and a stage on each machine.

    Links between machines are slower than those inside: stages send less than split layers. With `prefill` there is one
    stage: not every server can generate tokens in several from what another server has read.
    """
    tensor = spec.llm.tensor_parallel if spec.llm is not None else None
    pipeline = spec.llm.pipeline_parallel if spec.llm is not None else None
    total = max(1, spec.resources.visible_gpus) * machines_per_replica(spec)
    if pipeline is None:
        stages = machines_per_replica(spec) if spec.llm is None or spec.llm.prefill is None else 1
        pipeline = max(1, total // tensor) if tensor is not None else stages
    return Parallelism(tensor if tensor is not None else max(1, total // pipeline), pipeline)


def model_options(spec: ServingDeploymentSpec, options: Mapping[str, str]) -> list[str]:
    """Return the arguments for the split of the model, its length and its share of memory, by the server's options."""
    split, llm = split_model(spec), spec.llm
    values = {
        "tensor_parallel": str(split.tensor),
        "pipeline_parallel": str(split.pipeline) if split.pipeline > 1 else None,
        "max_length": str(llm.max_length) if llm is not None and llm.max_length is not None else None,
        "gpu_memory": _fraction(percent_number(llm.gpu_memory)) if llm is not None and llm.gpu_memory else None,
    }
    return [f"{options[key]}={value}" for key, value in values.items() if value is not None and key in options]


def adapter_path(adapter: Adapter) -> str:
    """Directory of an adapter in the pod."""
    return f"{ADAPTERS}/{adapter.name}" if adapter.is_fetched else str(adapter.path)


def _fraction(percentage: int) -> str:
    """Return a percentage as a decimal number from 0 to 1."""
    return f"{percentage / 100:g}"
