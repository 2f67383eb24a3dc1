"""Names and directories of a tier's objects."""

from __future__ import annotations

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec

DRIVER = "csi.juicefs.com"
"""The CSI driver, which runs a client (a mount pod) on each machine where a pod uses a volume."""

ROOT = "/volume"
"""Directory of the whole volume in the pods that import and load."""
STATE = "/.avactl"
"""Directory of the volume with what is being imported, and marks of what is."""


def config_name(item: Item[CacheTierSpec]) -> str:
    """Name of the tier's ConfigMap."""
    return f"{item.name}-juicefs"


def reading_claim(item: Item[CacheTierSpec]) -> str:
    """Name of the claim on the whole volume, read-only."""
    return f"{item.name}-read"


def importing_claim(item: Item[CacheTierSpec]) -> str:
    """Name of the claim on the whole volume that imports use."""
    return f"{item.name}-import"


def persistent_volume(claim: str) -> str:
    """Name of the PersistentVolume of a claim of the tier."""
    return f"{CACHE_NAMESPACE}-{claim}"
