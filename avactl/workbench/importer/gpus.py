"""GPU models and memory, as labels of nodes name them."""

from __future__ import annotations

import re

from avactl.hardware.topo_gpu import MODELS, parse_name

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
}
"""Models of AMD and Intel, and the smallest size of models that have several: what fits it fits all."""
_BY_WORD = {model.upper(): model for model in (*MODELS, *_GPU_MEMORY_GIB)}


def gpu_model(product: str) -> str:
    """Return the GPU model of a product name: `NVIDIA-A100-SXM4-80GB` and `nvidia-tesla-a100` → `A100`."""
    made = re.sub(r"^(NVIDIA|TESLA|AMD)[-_ ]+", "", product.upper())
    return known_gpu_model(product) or re.sub(r"[^A-Z0-9.-]+", "-", re.sub(r"^TESLA[-_ ]+", "", made)).strip("-.")[:40]


def known_gpu_model(text: str) -> str:
    """Return the GPU model that a text names, or an empty text."""
    return next((_BY_WORD[word] for word in re.split(r"[^A-Z0-9]+", text.upper()) if word in _BY_WORD), "")


def gpu_memory(model: str, product: str = "") -> str:
    """Return the memory of a GPU as a quantity: what the product name says, else by the model's data sheet."""
    facts = MODELS.get(model)
    said = None if model.startswith("G") else parse_name(product).memory_gib
    return f"{said or (facts.memory_gib if facts else None) or _GPU_MEMORY_GIB.get(model, 16)}Gi"
