"""GPU models and memory by names of products."""

from __future__ import annotations

import pytest

from avactl.workbench.importer.gpus import gpu_memory, gpu_model


@pytest.mark.parametrize(
    ("product", "model", "memory"),
    [
        ("Tesla-V100-SXM2-16GB", "V100", "16Gi"),
        ("Tesla-V100-SXM2-32GB", "V100", "32Gi"),
        ("NVIDIA-A100-SXM4-80GB", "A100", "80Gi"),
        ("NVIDIA-A100-SXM4-40GB", "A100", "40Gi"),
        ("nvidia-tesla-a100", "A100", "40Gi"),
        ("nvidia-a100-80gb", "A100", "80Gi"),
        ("nvidia-h100-mega-80gb", "H100", "80Gi"),
        ("nvidia-tesla-t4", "T4", "16Gi"),
        ("NVIDIA-A10G", "A10G", "24Gi"),
        ("NVIDIA-H20", "H20", "96Gi"),
        ("NVIDIA-GH200-480GB", "GH200", "96Gi"),  # 480 GB are the CPU's
        ("NVIDIA-L40S", "L40S", "48Gi"),
        ("MI300X", "MI300X", "192Gi"),
        ("Tesla-Z9", "Z9", "16Gi"),
    ],
)
def test_a_product_has_a_model_and_memory(product: str, model: str, memory: str) -> None:
    assert gpu_model(product) == model
    assert gpu_memory(model, product) == memory
