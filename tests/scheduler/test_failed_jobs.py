"""Jobs whose pods a node refuses, with Kubernetes' own Job controller: the next try is elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
REFUSED = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, "
    "which is unexpected",
}


def job(world: World) -> dict[str, Any]:
    """Return a Job with the retries of a compiled one."""
    amounts = {"cpu": "1", "nvidia.com/gpu": "8"}
    main = {"name": "main", "image": "registry.example.com/x:1", "resources": {"requests": amounts, "limits": amounts}}
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 3,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [ignored]},
        "template": {"spec": {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [main]}},
    }
    metadata = {"name": "train", "namespace": world.namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def test_a_job_leaves_a_node_that_refuses_its_pods(world: World) -> None:
    for node in ("a", "b"):
        world.node(node)
    world.ready()
    world.start()
    world.kube.create(job(world))
    world.wait(lambda: world.nodes_of())
    ((first, node),) = world.bound().items()
    path = f"/api/v1/namespaces/{world.namespace}/pods/{first}/status"
    world.kube.request("PATCH", path, body={"status": REFUSED}, content_type="application/merge-patch+json")
    world.wait(lambda: any(name != first and there for name, there in world.nodes_of().items()))
    (second,) = (there for name, there in world.nodes_of().items() if name != first)
    assert {node, second} == {"a", "b"}
