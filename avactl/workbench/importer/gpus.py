"""GPU models and memory, as labels of nodes name them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from avactl.hardware.topo_gpu import MODELS, parse_name

NVIDIA = "nvidia.com/gpu"

_GPU_MEMORY_GIB = {
    "MI300X": 192,
    "MI325X": 256,
    "MI350X": 288,
    "MI355X": 288,
    "GAUDI2": 96,
    "GAUDI3": 128,
    "MI250": 128,
    "A100": 40,
    "V100": 16,
    "H20": 96,
    "GH200": 96,
    "TPU-V4": 32,
    "TPU-V5E": 16,
    "TPU-V5P": 95,
    "TPU-V6E": 32,
    "TPU7X": 192,
}
"""Models of AMD, Intel and Google, and the smallest size of models that have several: what fits it fits all."""
_BY_WORD = {model.upper(): model for model in (*MODELS, *_GPU_MEMORY_GIB)}
_TPU_TYPES = {
    "tpu-v4-podslice": "TPU-V4",
    "tpu-v5-lite-podslice": "TPU-V5E",
    "tpu-v5-lite-device": "TPU-V5E",
    "tpu-v5p-slice": "TPU-V5P",
    "tpu-v6e-slice": "TPU-V6E",
    "tpu7x": "TPU7X",
}
"""Values of GKE's label `cloud.google.com/gke-tpu-accelerator`."""
ANY_MODELS = {NVIDIA: "GPU", "amd.com/gpu": "AMD-GPU", "habana.ai/gaudi": "GAUDI", "google.com/tpu": "TPU"}
"""Extended resource → placeholder for a model that nothing names."""


def gpu_model(product: str) -> str:
    """Return the GPU model of a product name: `NVIDIA-A100-SXM4-80GB` and `nvidia-tesla-a100` → `A100`."""
    if product in _TPU_TYPES:
        return _TPU_TYPES[product]
    made = re.sub(r"^(NVIDIA|TESLA|AMD)[-_ ]+", "", product.upper())
    return known_gpu_model(product) or re.sub(r"[^A-Z0-9.-]+", "-", re.sub(r"^TESLA[-_ ]+", "", made)).strip("-.")[:40]


def known_gpu_model(text: str) -> str:
    """Return the GPU model that a text names, or an empty text."""
    return next((_BY_WORD[word] for word in re.split(r"[^A-Z0-9]+", text.upper()) if word in _BY_WORD), "")


def resource_of(model: str) -> str:
    """Return the extended resource of a GPU model that no pool has."""
    for pattern, resource in ((r"MI\d|AMD", "amd.com/gpu"), ("GAUDI", "habana.ai/gaudi"), ("TPU", "google.com/tpu")):
        if re.match(pattern, model):
            return resource
    return NVIDIA


def models_of(resource: str, models: Mapping[str, str]) -> list[str]:
    """Return the models that a device plugin of the same vendor offers. `models`: model → extended resource."""
    vendor = resource.partition("/")[0]
    return [model for model, own in models.items() if own.partition("/")[0] == vendor]


def gpu_memory(model: str, product: str = "") -> str:
    """Return the memory of a GPU as a quantity: what the product name says, else by the model's data sheet."""
    facts = MODELS.get(model)
    said = None if model.startswith("G") else parse_name(product).memory_gib
    return f"{said or (facts.memory_gib if facts else None) or _GPU_MEMORY_GIB.get(model, 16)}Gi"
