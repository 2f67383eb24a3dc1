"""Large language models: how a model is split over GPUs, and its adapters."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.kinds.serving.models import ADAPTERS, has_files


class Parallelism(NamedTuple):
    """Split of a model over the `tensor * pipeline` GPUs of a pod."""

    tensor: int
    pipeline: int


def parallelism(spec: Any) -> Parallelism:
    """Return the split of a spec. Without keys: each layer over all GPUs."""
    tensor = spec.llm.tensor_parallel if spec.llm is not None else None
    pipeline = spec.llm.pipeline_parallel if spec.llm is not None else None
    total = max(1, spec.resources.gpus)
    if pipeline is None:
        pipeline = max(1, total // tensor) if tensor is not None else 1
    return Parallelism(tensor if tensor is not None else max(1, total // pipeline), pipeline)


def adapter_path(adapter: Any) -> str:
    """Directory of an adapter in the pod."""
    return f"{ADAPTERS}/{adapter.name}" if has_files(adapter) else str(adapter.path)


def share(percentage: int) -> str:
    """Return a percentage as a decimal number from 0 to 1."""
    return f"{percentage / 100:g}"
