"""Large language models: how a model is split over GPUs and machines, and its adapters."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.kinds.serving.models import ADAPTERS, has_files


class Parallelism(NamedTuple):
    """Split of one replica's model: `tensor * pipeline` GPUs on `machines` machines."""

    tensor: int
    pipeline: int
    machines: int


def parallelism(spec: Any) -> Parallelism:
    """Return the split of a spec. Without keys: pipeline stages over machines, tensors over the GPUs of each."""
    machines = spec.machines
    llm = spec.llm
    pipeline = llm.pipeline_parallel if llm is not None and llm.pipeline_parallel is not None else None
    tensor = llm.tensor_parallel if llm is not None and llm.tensor_parallel is not None else None
    total = max(1, spec.resources.gpus) * machines
    if pipeline is None:
        pipeline = machines if tensor is None else max(1, total // tensor)
    return Parallelism(tensor if tensor is not None else max(1, total // pipeline), pipeline, machines)


def adapter_path(adapter: Any) -> str:
    """Directory of an adapter in the pod."""
    return f"{ADAPTERS}/{adapter.name}" if has_files(adapter) else str(adapter.path)


def share(percentage: int) -> str:
    """Return a percentage as a decimal number from 0 to 1."""
    return f"{percentage / 100:g}"
