"""The models of a service: one of `spec.model`, or several of `spec.models`."""

from __future__ import annotations

from typing import Any

from avactl.program.program import Item, Program

MODELS = "/models"
"""Directory of downloaded models; TensorFlow Serving images use it too."""
LIVE = f"{MODELS}/live"
"""Directory of the models of `spec.models`, which servers scan."""
ADAPTERS = "/adapters"
"""Directory of downloaded LoRA adapters."""


def models(spec: Any) -> list[Any]:
    """Return the `ServedModel`s of a service, in the order of the spec."""
    return [spec.model] if spec.model is not None else list(spec.models)


def versions(model: Any) -> list[str]:
    """Return the versions of a model that are live."""
    return [model.version] if model.version is not None else list(model.versions)


def has_files(model: Any) -> bool:
    """Return True if avactl brings the files of a model into the pod."""
    return model.url is not None or model.dataset is not None


def places(spec: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return what a service has files of, with its path in the document: models and adapters."""
    if spec.model is not None:
        found: list[tuple[tuple[str | int, ...], Any]] = [(("spec", "model"), spec.model)]
    else:
        found = [(("spec", "models", index), model) for index, model in enumerate(spec.models)]
    adapters = spec.llm.adapters if spec.llm is not None else ()
    return [*found, *((("spec", "llm", "adapters", index), each) for index, each in enumerate(adapters))]


def secret_of(item: Item, program: Program, model: Any) -> str | None:
    """Secret for fetching a model: the spec's, else that of the team bucket that contains its URL."""
    if model.secret is not None:
        return str(model.secret)
    for bucket in program.get("Team", str(item.team)).spec.buckets:
        base = bucket.url.rstrip("/")
        if bucket.secret and (model.url == base or model.url.startswith(f"{base}/")):
            return str(bucket.secret)
    return None


def model_mount(spec: Any, model: Any) -> str:
    """Directory of a model's or adapter's files in the pod."""
    if model not in models(spec):
        return f"{ADAPTERS}/{model.name}"
    base = MODELS if spec.model is not None else LIVE
    # vLLM accepts the KV cache of another server only if both have the same model path.
    disaggregated = spec.llm is not None and spec.llm.prefill is not None
    if spec.runtime.name in ("tensorflowServing", "custom") or disaggregated:
        return f"{base}/{model.name}/{versions(model)[0]}"
    return base if spec.runtime.name == "torchServe" else f"{base}/{model.name}"
