"""Why pods of a version are not ready, from their statuses."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.daemons.serving.questions import pod_problem


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "state": {}, **more}


def failed(code: int, message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error", "message": message}}


WAITS = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
RUNS: dict[str, Any] = {"running": {}}


@pytest.mark.parametrize(
    ("init", "containers", "why"),
    [
        ([], [container("server", state=RUNS, started=False)], "server runs, and its startup probe does not succeed"),
        ([], [container("server", state=RUNS, started=True)], "server runs, and its readiness probe does not succeed"),
        ([], [container("server", state=RUNS, started=True, ready=True)], ""),
        ([], [container("server", state=NO_IMAGE)], "server: ImagePullBackOff no such image"),
        (
            [container("model", state=WAITS, lastState=failed(3, "INFO: begins\nERROR: not found\n"), restartCount=2)],
            [container("server", state={"waiting": {"reason": "PodInitializing"}})],
            "model ended with exit code 3, restarted 2 times: ERROR: not found",
        ),
        ([container("model", state=failed(1))], [], "model ended with exit code 1"),
        # It succeeded: what follows matters.
        (
            [container("model", state=failed(0), ready=True)],
            [container("server", state=RUNS, started=True)],
            "server runs, and its readiness probe does not succeed",
        ),
        ([container("model", state=RUNS)], [container("server", state={"waiting": {"reason": "PodInitializing"}})], ""),
        # Killed by its startup probe, and started again.
        (
            [],
            [container("server", state=RUNS, started=False, lastState=failed(137), restartCount=1)],
            "server ended with exit code 137, restarted once",
        ),
    ],
)
def test_the_first_cause(init: list[dict[str, Any]], containers: list[dict[str, Any]], why: str) -> None:
    pod = {"status": {"initContainerStatuses": init, "containerStatuses": containers}}
    assert pod_problem(pod) == (False, why)


def test_no_machine() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    assert pod_problem({"status": {"conditions": [condition]}}) == (True, "0/3 nodes are available")


def test_a_volume_that_cannot_be_mounted() -> None:
    condition = {"type": "PodReadyToStartContainers", "status": "False"}
    waits = container("server", state={"waiting": {"reason": "ContainerCreating"}})
    pod = {"metadata": {"name": "web-1"}, "status": {"conditions": [condition], "containerStatuses": [waits]}}
    assert pod_problem(pod) == (False, "pod web-1 waits for a volume or its network: see `kubectl describe pod`")


def test_what_containers_say_is_bounded() -> None:
    loud = container("server", state=WAITS, lastState=failed(1, "x" * 5000))
    assert len(pod_problem({"status": {"containerStatuses": [loud]}})[1]) == 300
