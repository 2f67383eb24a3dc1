"""Why pods of a version are not ready, from their statuses."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.kube.pod_diagnosis import PodStage, diagnose_pod, summarize_pods
from avactl.kube.timestamps import unix_time


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "state": {}, **more}


def failed(code: int, message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error", "message": message}}


WAITS = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
RUNS: dict[str, Any] = {"running": {}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}


@pytest.mark.parametrize(
    ("init", "containers", "stage", "why"),
    [
        (
            [],
            [container("server", state=RUNS, started=False)],
            PodStage.starting,
            "server runs, and its startup probe does not succeed",
        ),
        (
            [],
            [container("server", state=RUNS, started=True)],
            PodStage.starting,
            "server runs, and its readiness probe does not succeed",
        ),
        ([], [container("server", state=RUNS, started=True, ready=True)], PodStage.ready, ""),
        ([], [container("server", state=NO_IMAGE)], PodStage.failing, "server: ImagePullBackOff no such image"),
        (
            [container("model", state=WAITS, lastState=failed(3, "INFO: begins\nERROR: not found\n"), restartCount=2)],
            [container("server", state={"waiting": {"reason": "PodInitializing"}})],
            PodStage.retrying,
            "model ended with exit code 3, restarted 2 times: ERROR: not found",
        ),
        (
            [container("model", state=WAITS, lastState=failed(3), restartCount=6)],
            [],
            PodStage.failing,
            "model ended with exit code 3, restarted 6 times",
        ),
        ([container("model", state=failed(1))], [], PodStage.retrying, "model ended with exit code 1"),
        ([container("model", state=NO_IMAGE)], [], PodStage.failing, "model: ImagePullBackOff no such image"),
        # It succeeded: what follows matters.
        (
            [container("model", state=failed(0), ready=True)],
            [container("server", state=RUNS, started=True)],
            PodStage.starting,
            "server runs, and its readiness probe does not succeed",
        ),
        (
            [container("model", state={"running": {"startedAt": "2026-01-01T00:00:00Z"}}, started=True)],
            [container("server", state=INITIALIZING)],
            PodStage.preparing,
            "init container model runs since 2026-01-01T00:00:00Z",
        ),
        (
            [container("model", state=INITIALIZING, image="rclone:1")],
            [container("server", state=INITIALIZING)],
            PodStage.preparing,
            "model waits for its image rclone:1",
        ),
        (
            [container("model", state=failed(0), ready=True)],
            [container("server", state=INITIALIZING, image="vllm:1")],
            PodStage.preparing,
            "server waits for its image vllm:1",
        ),
        # Killed by its startup probe, and started again.
        (
            [],
            [container("server", state=RUNS, started=False, lastState=failed(137), restartCount=1)],
            PodStage.failing,
            "server ended with exit code 137, restarted once",
        ),
    ],
)
def test_the_first_cause(
    init: list[dict[str, Any]], containers: list[dict[str, Any]], stage: PodStage, why: str
) -> None:
    pod = {"status": {"initContainerStatuses": init, "containerStatuses": containers}}
    assert diagnose_pod(pod)[:2] == (stage, why)


def test_no_machine() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    found = diagnose_pod({"status": {"conditions": [condition]}})
    assert found[:2] == (PodStage.unscheduled, "0/3 nodes are available")


def test_a_volume_that_cannot_be_mounted() -> None:
    condition = {"type": "PodReadyToStartContainers", "status": "False"}
    waits = container("server", state={"waiting": {"reason": "ContainerCreating"}})
    pod = {"metadata": {"name": "web-1"}, "status": {"conditions": [condition], "containerStatuses": [waits]}}
    assert diagnose_pod(pod)[:2] == (
        PodStage.starting,
        "pod web-1 waits for a volume or its network: see `kubectl describe pod`",
    )


def test_what_containers_say_is_bounded() -> None:
    loud = container("server", state=WAITS, lastState=failed(1, "x" * 5000))
    assert len(diagnose_pod({"status": {"containerStatuses": [loud]}}).reason) == 300


def test_a_pod_waits_for_the_start_of_a_sidecar_and_not_for_its_end() -> None:
    follower = container("models", state=RUNS, started=True)
    server = container("server", state=RUNS, started=True, ready=True)
    status = {"initContainerStatuses": [follower], "containerStatuses": [server]}
    declared = {"initContainers": [{"name": "models", "restartPolicy": "Always"}]}
    found = diagnose_pod({"spec": declared, "status": status})
    assert found[:2] == (PodStage.starting, "models runs, and its readiness probe does not succeed")


def test_the_start_counts_from_the_end_of_copies_and_pulls() -> None:
    initialized = {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}

    def prepared(server: dict[str, Any]) -> float:
        status = {"conditions": [initialized], "containerStatuses": [container("server", **server)]}
        return diagnose_pod({"status": status}).prepared - unix_time("2026-01-01T01:00:00Z")

    def state(kind: str, second: int) -> dict[str, Any]:
        return {kind: {"startedAt": f"2026-01-01T01:00:{second}Z", "exitCode": 1}}

    assert prepared({"state": state("running", 40)}) == 40
    # Later starts of a server that crashes do not begin the time anew.
    assert prepared({"state": state("running", 55), "lastState": state("terminated", 40), "restartCount": 1}) == 40
    assert prepared({"state": state("running", 55), "lastState": state("terminated", 50), "restartCount": 7}) == 0
    assert prepared({"state": {"running": {"startedAt": "no time"}}}) == 0


def test_of_several_pods_the_first_stage_says_why() -> None:
    evicted = {"status": {"phase": "Failed", "reason": "Evicted", "message": "volume `model` exceeds its limit"}}
    copies = {"status": {"initContainerStatuses": [container("model", state=RUNS)]}}
    crashes = {"status": {"containerStatuses": [container("server", state=WAITS)]}}
    pending = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]}}
    assert summarize_pods([copies, evicted])[:2] == (
        PodStage.preparing,
        "a pod failed: Evicted: volume `model` exceeds its limit",
    )
    assert summarize_pods([copies, crashes]).stage is PodStage.preparing
    assert summarize_pods([crashes])[:2] == (PodStage.failing, "server: CrashLoopBackOff back-off 10s")
    assert summarize_pods([copies, crashes, pending])[:2] == (PodStage.unscheduled, "no node")
    assert summarize_pods([])[:2] == (PodStage.starting, "")
