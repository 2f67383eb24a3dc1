"""PersistentVolumes that exactly one claim can bind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item

NOMINAL_SIZE = "1Mi"
"""Size of a volume in an object store, where it has no meaning; a real one would use up a storage quota."""


def claimed_volume(
    item: Item,
    cluster: str,
    volume: str,
    claim: str,
    namespace: str,
    source: Mapping[str, Any],
    *,
    mode: Literal["ReadOnlyMany", "ReadWriteMany"],
    component: str,
    capacity: str = NOMINAL_SIZE,
) -> list[Manifest]:
    """Build a PersistentVolume and its claim; no other claim, of whatever namespace, can bind it.

    `source` has the volume's `spec` fields that say where its data is. Neither object holds data: what is in the
    object store stays there when they are deleted.
    """
    volume_spec = {
        "capacity": {"storage": capacity},
        "accessModes": [mode],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
        **source,
    }
    claim_spec = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": NOMINAL_SIZE}},
        "storageClassName": "",
        "volumeName": volume,
    }
    return [
        k8s.build_manifest(item, cluster, "v1", "PersistentVolume", volume, component=component, spec=volume_spec),
        k8s.build_manifest(
            item,
            cluster,
            "v1",
            "PersistentVolumeClaim",
            claim,
            namespace=namespace,
            component=component,
            spec=claim_spec,
        ),
    ]
