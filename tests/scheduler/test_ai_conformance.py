"""The requirements of the Kubernetes AI Conformance programme that concern a scheduler, as tests with their names.

https://github.com/cncf/ai-conformance, `docs/AIConformance-1.35.yaml`: every requirement of level MUST has a row in
docs/measured.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.scheduler.world import World
from tools.measured import replace_section

COMMIT = "7ae8f57"
API = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"

REQUIREMENTS: Mapping[str, str] = {
    "dra_support": "test_dra_support",
    "gang_scheduling": "test_gang_scheduling",
    "cluster_autoscaling": "test_cluster_autoscaling",
    "pod_autoscaling": "test_pod_autoscaling",
    "secure_accelerator_access": "test_secure_accelerator_access",
    "robust_controller": "tests/scheduler/test_leader_worker_sets.py",
    "ai_inference": "not the scheduler: the cluster's gateway; tests/serving/test_traffic.py",
    "accelerator_metrics": "not the scheduler: the exporter of the accelerators' vendor",
    "ai_service_metrics": "not the scheduler: the cluster's Prometheus; tests/serving/test_traffic.py",
}
"""The test of each MUST, or why none of the scheduler's concerns it."""

cluster = pytest.mark.controlplane
pytestmark = pytest.mark.xdist_group("scheduler")


@cluster
def test_dra_support(world: World) -> None:
    """Pods get devices that they select by attributes and count, and the same devices are given once."""
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    metadata: dict[str, Any] = {"name": "conformance"}
    world.kube.create(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": selectors}}
    )
    try:
        world.node("a", gpus=0, pool="")
        devices = [
            {"name": f"gpu-{number}", "attributes": {"memory": {"int": 16 * (1 + number % 2)}}} for number in range(4)
        ]
        pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
        spec: dict[str, Any] = {"nodeName": "a", "driver": DRIVER, "pool": pool, "devices": devices}
        world.kube.create({"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "a"}, "spec": spec})
        large = {"cel": {"expression": f'device.attributes["{DRIVER}"].memory >= 32'}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "conformance", "count": 2, "selectors": [large]}}
        metadata = {"name": "large", "namespace": world.namespace}
        spec = {"spec": {"devices": {"requests": [request]}}}
        world.kube.create({"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec})
        world.ready()
        world.start()
        claims = [{"name": "gpu", "resourceClaimTemplateName": "large"}]
        world.pod("first", resourceClaims=claims)
        world.bound("first")
        world.pod("second", resourceClaims=claims)
        world.waiting("second", "without free devices for its ResourceClaim")
        (allocated,) = [
            claim["status"] for claim in world.kube.list(API, "ResourceClaim", world.namespace) if claim.get("status")
        ]
        assert {each["device"] for each in allocated["allocation"]["devices"]["results"]} == {"gpu-1", "gpu-3"}
        assert [each["name"] for each in allocated["reservedFor"]] == ["first"]
    finally:
        world.kube.delete(API, "DeviceClass", "conformance")
        world.kube.request("DELETE", f"/apis/{API}/resourceslices")


@cluster
def test_gang_scheduling(world: World) -> None:
    """All pods of a distributed workload start, or none."""
    world.node("a")
    world.node("b")
    world.ready()
    world.start()
    world.gang("small", 2)
    world.bound("small-0", "small-1")
    world.gang("big", 3)
    world.waiting("big-0")
    for number in range(2):
        world.kube.delete("v1", "Pod", f"small-{number}", world.namespace)
    world.waiting("big-0", "needs 3")
    assert not any(world.nodes_of()[f"big-{number}"] for number in range(3))
    world.node("c")
    world.bound("big-0", "big-1", "big-2")


@cluster
def test_cluster_autoscaling(world: World) -> None:
    """An autoscaler sees that pods need accelerators, and they start on the nodes that it adds."""
    world.node("cpu", gpus=0, pool="")
    world.ready()
    world.start()
    world.pod("train", gpus=8)
    world.waiting("train")
    conditions = world.pods()["train"]["status"]["conditions"]
    (scheduled,) = [each for each in conditions if each["type"] == "PodScheduled"]
    # What cluster-autoscaler and Karpenter take for a pod that a new node may help.
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert not world.pods()["train"]["status"].get("nominatedNodeName")
    world.node("added")
    assert world.bound("train")["train"] == "added"
    # Before it removes a node, it drains it: the pod is placed elsewhere, not on a cordoned node.
    world.kube.patch(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "added"}, "spec": {"unschedulable": True}}
    )
    world.kube.delete("v1", "Pod", "train", world.namespace)
    world.pod("next", gpus=8)
    world.waiting("next")
    world.node("other")
    assert world.bound("next")["next"] == "other"


def _run_pods(world: World, count: int) -> bool:
    nodes = world.nodes_of().values()
    return len(nodes) == count and all(nodes)


@cluster
def test_pod_autoscaling(world: World) -> None:
    """Replicas with accelerators start and stop as the scale of their Deployment, which the HPA writes, changes."""
    world.node("a")
    world.ready()
    world.start()
    labels = {"app": "model"}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}}
    container = {"name": "main", "image": "registry.example.com/x:1", "resources": resources}
    template = {
        "metadata": {"labels": labels},
        "spec": {"schedulerName": "avactl", "terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    metadata = {"name": "model", "namespace": world.namespace}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    world.kube.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    for replicas in (1, 4, 2):
        path = f"/apis/apps/v1/namespaces/{world.namespace}/deployments/model/scale"
        scale = {"spec": {"replicas": replicas}}
        world.kube.request("PATCH", path, body=scale, content_type="application/merge-patch+json")
        world.wait(partial(_run_pods, world, replicas))
        devices = [index for name in world.pods() for index in world.devices(name)]
        assert len(devices) == len(set(devices)) == 2 * replicas


@cluster
def test_secure_accelerator_access(world: World) -> None:
    """No pod gets an accelerator of another one, whatever its author writes."""
    world.node("a")
    world.ready()
    world.start()
    world.pod("first", gpus=4)
    world.bound("first")
    world.pod("second", gpus=4, notes={"avactl.dev/devices": ",".join(map(str, sorted(world.devices("first"))))})
    world.bound("second")
    assert world.devices("first") | world.devices("second") == set(range(8))
    assert not world.devices("first") & world.devices("second")
    world.pod("without", notes={"avactl.dev/devices": "0,1,2,3,4,5,6,7"})
    world.pod("third", gpus=1)
    world.bound("without")
    world.waiting("third")


def test_every_requirement_has_a_row(golden: Callable[[Path, str], None]) -> None:
    lines = ["| requirement | test |", "|---|---|"]
    for name, test in REQUIREMENTS.items():
        if test.startswith("test_"):
            assert test in globals()
            test = f"`{Path(__file__).relative_to(ROOT)}::{test}`"
        lines.append(f"| `{name}` | {test} |")
    file = ROOT / "docs" / "measured.md"
    golden(file, replace_section(file.read_text(), "ai_conformance", "\n".join(lines)))
    named = [word.strip("`") for test in REQUIREMENTS.values() for word in test.split() if word.startswith("tests/")]
    assert [name for name in named if not (ROOT / name).exists()] == []
