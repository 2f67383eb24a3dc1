"""Pods that ask for something else than when they were made, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def patch(world: World, name: str, body: dict[str, Any], subresource: str = "", kind: str = MERGE) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/pods/{name}{subresource}"
    world.kube.request("PATCH", path, body=body, content_type=kind)


def runs(world: World, name: str, cpu: str) -> None:
    """What the kubelet says that a pod has."""
    held = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "x",
        "imageID": "x",
        "resources": {"requests": {"cpu": cpu}},
        "allocatedResources": {"cpu": cpu},
    }
    patch(world, name, {"status": {"phase": "Running", "containerStatuses": [held]}}, "/status")


def resize(world: World, name: str, cpu: str) -> None:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}
    patch(world, name, {"spec": spec}, "/resize", STRATEGIC)


def test_a_pod_that_was_resized_holds_what_it_has_then(world: World) -> None:
    world.node("n0", gpus=0, pool="")
    world.ready()
    world.start()
    world.pod("grows", cpu="8")
    world.bound("grows")
    runs(world, "grows", "8")
    resize(world, "grows", "60")
    world.pod("small", cpu="2")
    world.bound("small")
    world.pod("waits", cpu="4")
    assert "cpu" in world.waiting("waits")
    # Until the kubelet has made it smaller it holds what it held.
    runs(world, "grows", "60")
    resize(world, "grows", "1")
    world.pod("tiny", cpu="1")
    world.bound("tiny")
    assert not world.nodes_of()["waits"]
    runs(world, "grows", "1")
    world.bound("waits")


def test_gated_pods_are_narrowed_down_and_others_learn_to_tolerate(world: World) -> None:
    world.node("n0", gpus=0, pool="")
    world.node("n1", gpus=0, pool="", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    world.ready()
    world.start()
    toleration = {"key": "team", "operator": "Exists"}
    world.pod("gated", schedulingGates=[{"name": "example.com/gate"}], tolerations=[toleration])
    world.pod("shy", nodeSelector={"kubernetes.io/hostname": "n1"})
    assert "taint team=x" in world.waiting("shy")
    patch(world, "gated", {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}})
    patch(world, "gated", {"spec": {"schedulingGates": []}})
    assert world.bound("gated")["gated"] == "n1"
    given = world.pods()["shy"]["spec"]["tolerations"]
    patch(world, "shy", {"spec": {"tolerations": [*given, toleration]}})
    assert world.bound("shy")["shy"] == "n1"
