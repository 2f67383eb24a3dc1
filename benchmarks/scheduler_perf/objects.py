"""Objects of scheduler_perf that are not in its templates: base nodes and pods, volumes, ResourceSlices, CSINodes."""

from __future__ import annotations

from benchmarks.scheduler_perf.configurations import AllocatableStrategy
from benchmarks.scheduler_perf.templates import Manifest

DEVICES_API = "resource.k8s.io/v1"


def base_node(prefix: str) -> Manifest:
    """Return a node without a template."""
    amounts = {"pods": "110", "cpu": "4", "memory": "32Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"generateName": prefix},
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def base_pod() -> Manifest:
    """Return a pod without a template."""
    amounts = {"cpu": "100m", "memory": "500Mi"}
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10.2",
        "ports": [{"containerPort": 80}],
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "pod-"},
        "spec": {"containers": [container]},
    }


def csi_node(name: str, strategy: AllocatableStrategy) -> Manifest:
    """Return the CSINode of a node with limits of volumes."""
    drivers = [
        {"name": driver, "nodeID": name, "allocatable": {"count": limit.count}}
        for driver, limit in strategy.csi_node_allocatable.items()
    ]
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(strategy.migrated_plugins)}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"drivers": drivers},
    }


def bound_volume(template: Manifest, namespace: str, index: int) -> Manifest:
    """Return a PersistentVolume bound to the claim `pvc-INDEX`."""
    name = f"{namespace}-vol-{index}"
    spec = {**template["spec"]}
    if "csi" in spec:
        spec["csi"] = {**spec["csi"], "volumeHandle": name}
    elif "awsElasticBlockStore" in spec:
        spec["awsElasticBlockStore"] = {**spec["awsElasticBlockStore"], "volumeID": f"vol-{index}"}
    spec["claimRef"] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace,
        "name": f"pvc-{index}",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {**template.get("metadata", {}), "name": name},
        "spec": spec,
        "status": {"phase": "Bound"},
    }


def bound_claim(template: Manifest, namespace: str, index: int) -> Manifest:
    """Return the PersistentVolumeClaim `pvc-INDEX`, bound to its volume."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**template.get("metadata", {}), "name": f"pvc-{index}", "namespace": namespace},
        "spec": {**template["spec"], "volumeName": f"{namespace}-vol-{index}"},
        "status": {"phase": "Bound"},
    }


def resource_slice(driver: str, node: str, devices: int) -> Manifest:
    """Return the devices of a node."""
    attributes = {"model": {"string": "A100"}, "family": {"string": "GPU"}, "driverVersion": {"version": "1.2.3"}}
    return {
        "apiVersion": DEVICES_API,
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 0, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"instance-{index}",
                    "attributes": {**attributes, "dra.example.com/numa": {"int": index}},
                    "capacity": {"memory": {"value": "1Gi"}},
                }
                for index in range(devices)
            ],
        },
    }
