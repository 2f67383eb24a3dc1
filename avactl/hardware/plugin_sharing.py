"""GPUs that NVIDIA's device plugin divides or shares: a machine has fewer GPUs than its node has of the resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_PREFIX = "nvidia.com/"
_REPLICAS, _STRATEGY = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"
_COUNT, _PRODUCT, _MIG_STRATEGY = "nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/mig.strategy"
_MIG_RESOURCES, _SHARED_SUFFIX = "nvidia.com/mig-", ".shared"


class PluginSharing(NamedTuple):
    """How a node's device plugin divides or shares its GPUs."""

    way: str
    """`time-slicing`, `MPS` or `MIG`."""
    gpus: int | None
    """GPUs of the machine; None if its labels do not say it."""
    whole: bool = False
    """True if each unit of `nvidia.com/gpu` is a GPU of its own, beside GPUs that are divided."""

    @property
    def remedy(self) -> str:
        """The change to make on the node."""
        if self.way == "MIG":
            return "turn MIG off, or allocate its devices by DRA (`allocation: dra`)"
        return (
            f"turn {self.way} off in the device plugin's configuration: a share is `gpus: 0.5` with "
            "`devicesChosenBy: scheduler`, where avactl counts it"
        )


def find_plugin_sharing(labels: Mapping[str, str], resources: Iterable[str]) -> PluginSharing | None:
    """Return how a device plugin shares a node's GPUs, by the node's labels and resources; None if it does not.

    Labels are written by GPU feature discovery. Source: README.md ("Catalog of Labels", "Shared Access to GPUs") and
    internal/lm/resource.go of NVIDIA/k8s-device-plugin. With the MIG strategy `single`, `gpu.count` counts instances.
    """
    product, replicas = labels.get(_PRODUCT, ""), _parse_count(labels.get(_REPLICAS, ""))
    count = _parse_count(labels.get(_COUNT, "")) or None
    if labels.get(_MIG_STRATEGY) == "single" and "-MIG-" in product:
        return PluginSharing("MIG", None)
    if replicas > 1 or product.endswith("-SHARED"):
        return PluginSharing("MPS" if labels.get(_STRATEGY) == "mps" else "time-slicing", count)
    for name in resources:
        if name.startswith(_MIG_RESOURCES):
            return PluginSharing("MIG", count, whole=True)
        if name.startswith(_PREFIX) and name.endswith(_SHARED_SUFFIX):
            return PluginSharing("MPS" if labels.get(_STRATEGY) == "mps" else "time-slicing", count)
    return None


def _parse_count(text: str) -> int:
    return int(text) if len(text) < 6 and text.isdecimal() else 0
