"""GPU models and memory by names of products."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.workbench.importer.gpus import gpu_memory, gpu_model
from tests.importer.importing import imported


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


def job(name: str, selector: str) -> str:
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, namespace: ml}}
spec:
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {selector}
      containers:
      - name: main
        image: registry.example.com/train@sha256:{"ab" * 32}
        command: [python, train.py]
        resources: {{limits: {{google.com/tpu: 4}}, requests: {{google.com/tpu: 4}}}}
---
"""


def test_assumed_pools_have_the_labels_that_their_pods_select(tmp_path: Path) -> None:
    gke = "cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice, kubernetes.io/arch: amd64"
    made = imported(
        job("one", f"{{{gke}, example.com/rack: r7}}") + job("two", f"{{{gke}, example.com/rack: r8}}"), tmp_path
    )
    (pool,) = [spec for spec in made.specs if spec.kind == "NodePool"]
    assert pool.spec["labels"] == {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}
    assert "example.com/rack, r7, r8" in pool.comments[1]
