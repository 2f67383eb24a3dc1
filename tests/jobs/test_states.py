"""What Jobs and pods say of a training job, without a cluster."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from avactl.workbench.jobs.members import make_member, role_job
from avactl.workbench.jobs.state import TrainingJobState, assemble_job
from tests.kinds.compiling import DIGEST, unchecked
from tests.plan.test_plan import IMAGE, platform

NOW = "2026-01-01T00:00:00Z"


def assembled(more: str, pods: list[dict[str, Any]]) -> TrainingJobState:
    """The state of a job of two workers with 8 GPUs each."""
    spec = (
        "---\nkind: TrainingJob\nmetadata: {name: train, team: vision}\nspec:\n  strategy: allReduce\n"
        f"  image: {IMAGE}\n  command: [python, x.py]\n"
        f"  workers: {{replicas: 2, gpus: 8, gpu: V100, cpu: 4, memory: 16Gi}}\n{more}"
    )
    result = unchecked(platform() + spec)
    assert result.ok, result.diagnostics
    jobs = [manifest.body for manifest in result.manifests if manifest.kind == "Job"]
    for body in jobs:
        body["metadata"] |= {"uid": "u", "creationTimestamp": NOW}
    return assemble_job(map(role_job, jobs), map(make_member, pods), None)


def pod(name: str, component: str, node: str, phase: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "train", "app.kubernetes.io/component": component}
    metadata = {"namespace": "vision", "name": name, "uid": name, "creationTimestamp": NOW, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def test_init_containers_use_the_gpus_of_the_containers() -> None:
    assert assembled("  healthCheck: {}\n", []).gpus == 16
    sidecar = "  pod: {sidecars: [{name: s, image: " + f"registry.example.com/s{DIGEST}" + "}]}\n"
    assert assembled("  healthCheck: {}\n" + sidecar, []).gpus == 16


def test_gpus_of_sidecars_count() -> None:
    def container(gpus: int, **more: str) -> dict[str, Any]:
        return {"name": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}, **more}

    spec = {
        "containers": [container(2)],
        "initContainers": [container(3), container(1, restartPolicy="Always"), container(4)],
    }
    metadata = {"namespace": "a", "name": "b", "uid": "c", "creationTimestamp": NOW}
    job = {"metadata": metadata, "spec": {"template": {"metadata": {}, "spec": spec}}}
    assert role_job(job).gpus == Fraction(5)


def test_a_tensorboard_is_no_worker() -> None:
    queued = [pod(f"train-worker-{index}", "worker", "", "Pending") for index in range(2)]
    board = pod("train-tensorboard-x", "tensorboard", "n1", "Running")
    waiting = assembled("", [*queued, board])
    assert (waiting.state, waiting.workers) == ("queued", 0)
    half = assembled("", [pod("train-worker-0", "worker", "n1", "Running"), queued[1], board])
    assert half.state == "queued"
