"""DRA device classes: one per GPU model of the cluster's DRA pools, plus the declared ones."""

from __future__ import annotations

import re

from avactl.program.lowering import k8s
from avactl.program.lowering.gpu_request import NVIDIA_DRIVER
from avactl.program.lowering.pods import device_class
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec


def dra_models(item: Item[ClusterSpec], program: Program) -> list[str]:
    """GPU models of the cluster's pools that use DRA, by name."""
    pools = (pool for pool in program.gpu_pools(item.name) if pool.spec.allocation == "dra")
    return sorted({str(program.machine(pool).gpu_model) for pool in pools})


def device_selector(driver: str, model: str) -> str:
    """Return the CEL expression that selects whole GPUs of a model.

    Drivers publish the full product name (`Tesla V100-SXM2-32GB`, `NVIDIA H100 80GB HBM3`), so each word of the
    model must be one of its words: `A10` does not match `A100`, and `A100-80GB` is the larger A100. NVIDIA's driver
    also publishes GPU partitions (MIG) and passed-through GPUs, distinguished by `type`.
    Sources: NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go (`type`, `productName`);
    kubernetes-sigs/dra-example-driver (`model`).
    """
    attributes = f'device.attributes["{driver}"]'
    words = [rf'.matches("(?i)\\b{word}\\b")' for word in re.split(r"[^A-Za-z0-9]+", model) if word]
    if driver == NVIDIA_DRIVER:
        terms = [f'{attributes}.type == "gpu"', *(f"{attributes}.productName{word}" for word in words)]
    else:
        names = " || ".join(
            f'("{key}" in {attributes} && ' + " && ".join(f"{attributes}.{key}{word}" for word in words) + ")"
            for key in ("productName", "model")
        )
        terms = [f"({names})"]
    return " && ".join([f'device.driver == "{driver}"', *terms])


def device_classes(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the DeviceClass objects of a cluster. A declared class replaces avactl's class of the same name."""
    driver = item.spec.gpu_driver
    expressions = {device_class(model): device_selector(driver, model) for model in dra_models(item, program)}
    expressions.update((declared.name, declared.cel) for declared in item.spec.device_classes)
    return [
        k8s.build_manifest(
            item,
            item.name,
            "resource.k8s.io/v1",
            "DeviceClass",
            name,
            spec={"selectors": [{"cel": {"expression": expression}}]},
        )
        for name, expression in expressions.items()
    ]
