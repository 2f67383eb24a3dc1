"""Jobs that the Job controller of Kubernetes 1.37 puts into PodGroups: all start, and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts.names import INITIALLY_SCHEDULED
from tests.kinds.escalations import SECURITY
from tests.kinds.test_training_placed import TEAM, Jobs, compile_jobs, place
from tools.controlplane.build import KUBERNETES_MINOR

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.skipif(KUBERNETES_MINOR == "1.36", reason="Kubernetes 1.36 does not serve PodGroups v1beta1"),
]
GATES = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WorkloadWithJob=true"
GROUPS = "scheduling.k8s.io/v1beta1"
Body = dict[str, Any]


@pytest.fixture(scope="module")
def placed(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with place(compile_jobs(), tmp_path_factory.mktemp("scheduler"), GATES) as found:
        yield found


def finish(placed: Jobs) -> None:
    """Let the programs of all pods that run end well."""
    for pod in placed.pods():
        if (pod.get("status") or {}).get("phase") == "Running":
            path = f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}/status"
            body = {"status": {"phase": "Succeeded"}}
            placed.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")


def ended(placed: Jobs) -> dict[str, bool]:
    found = {}
    for job in placed.kube.list("batch/v1", "Job", TEAM):
        conditions = (job.get("status") or {}).get("conditions") or ()
        found[job["metadata"]["name"]] = any(
            each["type"] == "Complete" and each["status"] == "True" for each in conditions
        )
    return found


def conditions(placed: Jobs) -> dict[str, tuple[str, str]]:
    """Status and reason of the condition of each PodGroup."""
    found = {}
    for group in placed.kube.list(GROUPS, "PodGroup", TEAM):
        found[group["metadata"]["name"]] = next(
            (
                (each["status"], each["reason"])
                for each in (group.get("status") or {}).get("conditions") or ()
                if each["type"] == INITIALLY_SCHEDULED
            ),
            ("", ""),
        )
    return found


def end_all(placed: Jobs) -> None:
    """Let all jobs of the example start and end, unless they have."""
    if not all(ended(placed).values()):
        placed.make_room()
        finish(placed)
        placed.wait(lambda: all(ended(placed).values()))


def test_every_job_starts_and_ends(placed: Jobs) -> None:
    placed.make_room()
    groups = {each["metadata"]["name"]: each["spec"] for each in placed.kube.list(GROUPS, "PodGroup", TEAM)}
    assert len(groups) == len(placed.completions)
    assert all("basic" in spec["schedulingPolicy"] for spec in groups.values())
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in placed.pods()} == groups.keys()
    placed.wait(lambda: set(conditions(placed).values()) == {("True", "Scheduled")})
    end_all(placed)
    assert ended(placed).keys() == placed.completions.keys()


def test_a_gang_of_kubernetes(placed: Jobs) -> None:
    """A Job of eight pods, four at a time, with a policy `gang`: each four start together or not at all."""
    end_all(placed)  # they would take the room
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "securityContext": SECURITY,
        "resources": {"requests": {"cpu": "20", "memory": "1Gi"}},
    }
    pod: Body = {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [container]}
    pod["nodeSelector"] = {"gang": "here"}
    scheduling: Body = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "theirs", "namespace": TEAM},
        "spec": {
            "parallelism": 4,
            "completions": 8,
            "completionMode": "Indexed",
            "scheduling": scheduling,
            "template": {"spec": pod},
        },
    }
    amounts = {"cpu": "64", "memory": "116Gi", "pods": "110"}
    machine = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gang-0", "labels": {"kubernetes.io/hostname": "gang-0", "gang": "here"}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    placed.kube.create(machine)
    placed.kube.create(job)

    def mine() -> list[Body]:
        return [each for each in placed.pods() if each["metadata"]["labels"].get("job-name") == "theirs"]

    def state() -> tuple[str, str]:
        return next((found for name, found in conditions(placed).items() if name.startswith("theirs-")), ("", ""))

    # Three fit, and four are needed.
    placed.wait(lambda: state() == ("False", "Unschedulable"))
    assert [each["spec"].get("nodeName") for each in mine()] == [None] * 4
    second = {**machine, "metadata": {"name": "gang-1", "labels": {"kubernetes.io/hostname": "gang-1", "gang": "here"}}}
    placed.kube.create(second)
    placed.wait(lambda: state() == ("True", "Scheduled"))
    placed.wait(lambda: [each["status"]["phase"] for each in mine()] == ["Running"] * 4)
    finish(placed)
    placed.wait(lambda: [each["status"]["phase"] for each in mine()].count("Running") == 4)
    assert len(mine()) == 8
    finish(placed)
    placed.wait(lambda: ended(placed).get("theirs"))
