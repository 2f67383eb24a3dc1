"""Preemptions that wait for machines of Karpenter and Cluster Autoscaler, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl.kube.timestamps import timestamp
from tests.kinds.compiling import apply, body, compiled
from tests.scheduler.test_coming_machines import STATUS
from tests.scheduler.world import SPECS, SYSTEM, World
from tools.controlplane import ApiError

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
GROUP = "asg-v100"
POOL = f"""
---
kind: NodePool
metadata: {{name: grown}}
spec:
  cluster: main
  machineType: twosocket
  allocation: devicePlugin
  autoscaling: {{max: 1, preemptAfter: 10m, nodeGroups: [{GROUP}]}}
"""
CLAIMS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "nodeclaims.karpenter.sh",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements"},
    },
    "spec": {
        "group": "karpenter.sh",
        "names": {"kind": "NodeClaim", "plural": "nodeclaims", "singular": "nodeclaim"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@pytest.fixture
def grown(world: World, tmp_path: Path) -> Iterator[World]:
    """A full machine of a pool that waits for machines on their way, and may not grow: none is about to be ordered."""
    world.kube.apply(CLAIMS)
    result = compiled(SPECS + POOL)
    apply(world.kube, result.manifests)
    world.policy, before = tmp_path / "policy.json", world.policy
    world.policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
    world.node("a", pool="grown")
    world.ready()
    world.pod("low", 8, priorityClassName="avactl-low")
    yield world
    world.policy = before
    world.kube.delete("v1", "ConfigMap", "avactl-pool-grown", SYSTEM)
    for item in world.kube.list("karpenter.sh/v1", "NodeClaim"):
        world.kube.delete("karpenter.sh/v1", "NodeClaim", item["metadata"]["name"])
    try:
        world.kube.delete("v1", "ConfigMap", "cluster-autoscaler-status", "kube-system")
    except ApiError as error:
        if error.status != 404:
            raise


def order(world: World, name: str) -> None:
    """Have Karpenter order a machine."""
    metadata = {"name": name, "labels": {"avactl.dev/pool": "grown", "karpenter.sh/nodepool": "default"}}
    world.kube.create({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata, "spec": {}})


def report(world: World, status: str, target: int) -> None:
    """Have Cluster Autoscaler write its status."""
    text = STATUS.format(
        group=GROUP, status=status, target=target, since=timestamp(), registered={"total": 1, "ready": 1}
    )
    metadata = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    world.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"status": text}})


def reason(world: World, name: str) -> str:
    conditions = world.pods()[name]["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "PodScheduled"))


def test_karpenters_machine_is_waited_for_and_used(grown: World) -> None:
    order(grown, "first")
    grown.start()
    grown.bound("low")
    grown.pod("high", 8, priorityClassName="avactl-serving")
    grown.waiting("high", "a machine of pool grown is on its way: no pod is preempted for it until ")
    assert reason(grown, "high") == "Unschedulable"
    grown.node("b", pool="grown")
    assert grown.bound("low", "high") == {"low": "a", "high": "b"}


def test_karpenters_machine_is_given_up(grown: World) -> None:
    order(grown, "first")
    grown.start()
    grown.bound("low")
    grown.pod("high", 8, priorityClassName="avactl-serving")
    grown.waiting("high", "is on its way")
    grown.kube.delete("karpenter.sh/v1", "NodeClaim", "first")
    grown.wait(lambda: grown.nodes_of().get("high") == "a")
    assert "low" not in grown.pods()


def test_cluster_autoscalers_machine(grown: World) -> None:
    report(grown, "InProgress", 2)
    grown.start()
    grown.bound("low")
    grown.pod("high", 8, priorityClassName="avactl-serving")
    grown.waiting("high", "is on its way")
    report(grown, "Backoff", 1)
    grown.wait(lambda: grown.nodes_of().get("high") == "a")


def test_without_the_right_to_see_machines_nobody_waits(grown: World) -> None:
    """An administrator applies roles: until then the scheduler works, and preempts at once."""
    role = next(item for item in compiled(SPECS).manifests if item.kind == "ClusterRole" and "scheduler" in item.name)
    order(grown, "first")
    apply(grown.kube, [role])
    grown.start()
    grown.bound("low")
    grown.pod("high", 8, priorityClassName="avactl-serving")
    grown.wait(lambda: grown.nodes_of().get("high") == "a")
