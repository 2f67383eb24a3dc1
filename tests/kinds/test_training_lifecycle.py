"""Retries, suspension and time to live of jobs, by Kubernetes' own controllers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.contracts import names
from avactl.kinds.training.init_containers import health_check
from tests.kinds.compiling import DIGEST, apply, body, compiled
from tools.controlplane import ControlPlane, KubeClient

INDEX = "batch.kubernetes.io/job-completion-index"
PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec: {{images: {{avactl: avactl{DIGEST}, kubectl: kubectl{DIGEST}}}}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}}}
"""
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
SERVERS = "framework: mxnet, strategy: parameterServer, workers: {replicas: 2}, servers: {}"
ROLES = ("worker", "server", "scheduler")


def job(name: str, spec: str) -> str:
    return (
        f"---\nkind: TrainingJob\nmetadata: {{name: {name}, team: vision}}\n"
        f"spec: {{image: registry.example.com/train, command: [python, train.py], {spec}}}\n"
    )


@pytest.fixture(scope="module")
def kube(control_plane_binaries: None) -> Iterator[KubeClient]:
    with ControlPlane(controller_manager=True) as plane, plane.client() as client:
        apply(client, compiled(PLATFORM).manifests)
        yield client


def start(kube: KubeClient, text: str) -> Compilation:
    """Apply a job, again if it is there."""
    result = compiled(PLATFORM + text)
    apply(kube, [manifest for manifest in result.manifests if manifest.item.kind == "TrainingJob"])
    return result


def pods(kube: KubeClient, name: str) -> list[dict[str, Any]]:
    found = kube.list("v1", "Pod", "vision", label_selector=f"batch.kubernetes.io/job-name={name}")
    return [pod for pod in found if pod.get("status", {}).get("phase") not in ("Failed", "Succeeded")]


def wait(kube: KubeClient, name: str, until: Any) -> dict[str, Any]:
    return kube.wait_for("batch/v1", "Job", name, "vision", until=until)


def active(count: int) -> Any:
    return lambda found: found.get("status", {}).get("active", 0) == count


def condition(name: str) -> Any:
    return lambda found: any(
        each["type"] == name and each["status"] == "True" for each in found.get("status", {}).get("conditions", ())
    )


def end(kube: KubeClient, pod: dict[str, Any], phase: str) -> None:
    name = {"name": pod["metadata"]["name"], "namespace": "vision"}
    kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": name, "status": {"phase": phase}}, subresource="/status")


def test_each_index_is_retried_until_the_job_fails(kube: KubeClient) -> None:
    start(kube, job("again", "strategy: allReduce, workers: {replicas: 2}, retries: 1"))
    wait(kube, "again-worker", active(2))
    for pod in pods(kube, "again-worker"):
        end(kube, pod, "Failed")
    # The controller holds the next ones back, for 10 s after the first failure of an index, then 20 s, 40 s, …
    wait(kube, "again-worker", lambda found: found["status"].get("failed") == 2 and active(2)(found))
    second = pods(kube, "again-worker")
    counted = [pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] for pod in second]
    assert counted == ["1", "1"]
    end(kube, second[0], "Failed")
    failed = wait(kube, "again-worker", condition("Failed"))
    assert failed["status"]["failedIndexes"] in ("0", "1")


def test_a_disruption_is_no_failure(kube: KubeClient) -> None:
    start(kube, job("moved", "strategy: allReduce, workers: {replicas: 2}, retries: 0"))
    wait(kube, "moved-worker", active(2))
    (first, _) = pods(kube, "moved-worker")
    name = {"name": first["metadata"]["name"], "namespace": "vision"}
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    status = {"phase": "Failed", "conditions": [disrupted]}
    kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": name, "status": status}, subresource="/status")

    def replaced(found: dict[str, Any]) -> bool:
        names = {pod["metadata"]["name"] for pod in pods(kube, "moved-worker")}
        return len(names) == 2 and first["metadata"]["name"] not in names

    assert not condition("Failed")(wait(kube, "moved-worker", replaced))


@pytest.mark.parametrize("code", [names.REPLACED_EXIT, 1])
def test_a_slow_worker_that_leaves_gets_a_successor(kube: KubeClient, code: int) -> None:
    """And another failure is one too many."""
    name = f"slow-{code}"
    elastic = "framework: custom, strategy: elastic, workers: {min: 1, max: 2}, preemptible: false, retries: 0"
    start(kube, job(name, elastic))
    wait(kube, f"{name}-worker", active(2))
    (last,) = [pod for pod in pods(kube, f"{name}-worker") if pod["metadata"]["annotations"][INDEX] == "1"]
    ended = {"name": "worker", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "phase": "Failed",
        "containerStatuses": [{**ended, "state": {"terminated": {"exitCode": code, "containerID": ""}}}],
    }
    metadata = {"name": last["metadata"]["name"], "namespace": "vision"}
    kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, subresource="/status")
    if code != names.REPLACED_EXIT:
        wait(kube, f"{name}-worker", lambda found: found["status"].get("failedIndexes") == "1")
        return

    def replaced(found: dict[str, Any]) -> bool:
        left = [pod for pod in pods(kube, f"{name}-worker") if pod["metadata"]["annotations"][INDEX] == "1"]
        return bool(left) and left[0]["metadata"]["uid"] != last["metadata"]["uid"]

    found = wait(kube, f"{name}-worker", replaced)
    assert not found["status"].get("failed")
    assert not found["status"].get("failedIndexes")


def test_a_pod_on_a_bad_node_gets_a_successor_and_a_vain_check_fails_the_job(kube: KubeClient) -> None:
    start(kube, job("bad", "strategy: allReduce, workers: {replicas: 2}, retries: 0, healthCheck: {}"))
    wait(kube, "bad-worker", active(2))
    ends_in_check(kube, pods(kube, "bad-worker")[1], names.REPLACED_EXIT)

    def replaced(found: dict[str, Any]) -> bool:
        return active(2)(found) and not found["status"].get("failed") and len(pods(kube, "bad-worker")) == 2

    wait(kube, "bad-worker", replaced)
    before = {each["metadata"]["annotations"].get(IGNORED) for each in pods(kube, "bad-worker")}
    assert before == {None, "1"}  # by which a pod knows that it is a successor
    ends_in_check(kube, pods(kube, "bad-worker")[0], health_check.GAVE_UP)
    failed = wait(kube, "bad-worker", condition("Failed"))
    (why,) = [each["message"] for each in failed["status"]["conditions"] if each["type"] == "Failed"]
    assert "Container health-check" in why
    assert "exit code 80" in why


def ends_in_check(kube: KubeClient, pod: dict[str, Any], code: int) -> None:
    """Do what a kubelet does with a pod whose health check ends with an exit code."""
    ended = {"image": "", "imageID": "", "ready": False, "restartCount": 0}
    terminated = {"terminated": {"exitCode": code, "containerID": ""}}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [{**ended, "name": health_check.CONTAINER, "state": terminated}],
    }
    metadata = {"name": pod["metadata"]["name"], "namespace": "vision"}
    kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, subresource="/status")


def test_a_suspended_job_has_no_pods_and_goes_on_afterwards(kube: KubeClient) -> None:
    start(kube, job("pause", SERVERS))
    for role, count in zip(ROLES, (2, 1, 1), strict=True):
        wait(kube, f"pause-{role}", active(count))
    before = {pod["metadata"]["uid"] for role in ROLES for pod in pods(kube, f"pause-{role}")}
    start(kube, job("pause", f"{SERVERS}, suspended: true"))
    for role in ROLES:
        wait(kube, f"pause-{role}", condition("Suspended"))
        wait(kube, f"pause-{role}", active(0))
        assert pods(kube, f"pause-{role}") == []
    start(kube, job("pause", SERVERS))
    for role, count in zip(ROLES, (2, 1, 1), strict=True):
        wait(kube, f"pause-{role}", active(count))
        assert not before & {pod["metadata"]["uid"] for pod in pods(kube, f"pause-{role}")}


def test_jobs_and_pods_are_deleted_after_their_time_to_live(kube: KubeClient) -> None:
    result = start(kube, job("short", f"{SERVERS}, ttl: 1s"))
    assert {body(result, "Job", f"short-{role}", "vision")["spec"]["ttlSecondsAfterFinished"] for role in ROLES} == {1}
    for role, count in zip(ROLES, (2, 1, 1), strict=True):
        wait(kube, f"short-{role}", active(count))
        for pod in pods(kube, f"short-{role}"):
            end(kube, pod, "Succeeded")
    for role in ROLES:
        kube.wait_gone("batch/v1", "Job", f"short-{role}", "vision")
    left = kube.list("v1", "Pod", "vision", label_selector="avactl.dev/gang=short")
    for pod in left:
        kube.wait_gone("v1", "Pod", pod["metadata"]["name"], "vision")
