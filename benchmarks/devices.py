"""Pods that get their GPU by a ResourceClaim made from a template: as many machines, pods and requests as without."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.clusters import NAMESPACE, SCHEDULERS, bar, cluster, create, drain, node, pod
from tools.controlplane import KubeClient

DRIVER = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
TEMPLATE = "one-gpu"


def machine(number: int) -> dict[str, Any]:
    """A machine whose GPUs a driver publishes."""
    found = node(number)
    for amounts in (found["status"]["capacity"], found["status"]["allocatable"]):
        amounts.pop("nvidia.com/gpu", None)
    return found


def resource_slice(number: int, gpus: int = 8) -> dict[str, Any]:
    """The GPUs of a machine, as NVIDIA's driver publishes them."""
    devices = [
        {
            "name": f"gpu-{gpu}",
            "attributes": {
                "type": {"string": "gpu"},
                "index": {"int": gpu},
                "minor": {"int": gpu},
                "uuid": {"string": f"GPU-{number:08x}-{gpu:04x}"},
                "productName": {"string": "Tesla V100-SXM2-32GB"},
                "architecture": {"string": "Volta"},
                "cudaComputeCapability": {"version": "7.0.0"},
                "driverVersion": {"version": "580.65.6"},
            },
            "capacity": {"memory": {"value": "32Gi"}},
        }
        for gpu in range(gpus)
    ]
    name = f"node-{number}"
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": name, "driver": DRIVER, "pool": pool, "devices": devices}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpus"}, "spec": spec}


def device_class() -> dict[str, Any]:
    """The class that the driver installs."""
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": spec}


def template() -> dict[str, Any]:
    """Claims of one GPU."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    metadata = {"name": TEMPLATE, "namespace": NAMESPACE}
    spec = {"spec": {"devices": {"requests": [request]}}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def claiming(number: int, scheduler: str) -> dict[str, Any]:
    """A pod that gets its GPU by a claim."""
    found = pod(number, scheduler, 1)
    container = found["spec"]["containers"][0]
    container["resources"]["requests"].pop("nvidia.com/gpu")
    container["resources"] = {"requests": container["resources"]["requests"], "claims": [{"name": "gpu"}]}
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}]
    return found


def claims_made(kube: KubeClient, pods: int) -> None:
    """Wait until the controller has created the claims of all pods and recorded their names in the pods."""
    while len(kube.list(API, "ResourceClaim", NAMESPACE)) < pods or any(
        not (item.get("status") or {}).get("resourceClaimStatuses") for item in kube.list("v1", "Pod", NAMESPACE)
    ):
        time.sleep(1.0)


def claims_gone(kube: KubeClient) -> None:
    """Wait until the claims of pods that are gone are gone too."""
    while kube.request("GET", f"/apis/{API}/namespaces/{NAMESPACE}/resourceclaims", query={"limit": "1"}).body["items"]:
        time.sleep(0.5)


def throughput(nodes: int, pods: int) -> None:
    """One-GPU pods with claims, created first and then drained."""
    print(
        f"\n{pods} pods with a claim of 1 GPU on {nodes} machines with 8, created first, then drained; client QPS 1000"
    )
    print(f"{'':16}{'pods/s':>10}{'bound in s':>12}{'events':>8}{'in s':>8}")
    rates = {}
    with cluster(nodes, machine) as (plane, kube):
        for item in (device_class(), template()):
            kube.create(item)
        create(kube, [resource_slice(number) for number in range(nodes)])
        for name, profile in SCHEDULERS.items():
            mine = [claiming(number, profile) for number in range(pods)]
            found = drain(plane, kube, name, mine, created=lambda: claims_made(kube, pods))
            rates[name] = found.rate
            print(
                f"{name:16}{found.rate:10.0f}{found.seconds:12.2f}{found.events:8}{found.events_seconds:8.2f}",
                flush=True,
            )
            claims_gone(kube)
    bar(f"dra-{nodes}", rates["avactl"] / rates["kube-scheduler"], 2.0, at_least=True)
