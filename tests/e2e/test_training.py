"""Training jobs as compiled, as pods on two nodes: pods are deleted and killed on the way, and the result is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.cluster_fixtures import building
from tests.e2e.platform import Repository
from tests.e2e.pods import TIMEOUT
from tools import image
from tools.controlplane import KubeClient
from tools.realnode import RealNode
from tools.waiting import wait_until

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
TEAM = "vision"
RECORDS, FEATURES, TASKS = 4096, 16, 64  # of the examples

ELASTIC = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: scores, team: vision}
spec:
  strategy: elastic
  framework: custom
  image: "IMAGE"
  command: [python, scripts/gated.py, scripts/score.py]
  env: {GATES: "16,40"}
  workers: {min: 1, max: 4, cpu: 100m, memory: 256Mi}
  master: {cpu: 100m, memory: 256Mi}
  checkpoint: {volume: 1Gi, deletionPolicy: delete}
"""
ALL_REDUCE = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: reduced, team: vision}
spec:
  strategy: allReduce
  framework: custom
  image: "IMAGE"
  command: [python, scripts/gated.py, scripts/all_reduce.py]
  env: {GATES: "3"}
  workers: {replicas: 3, cpu: 100m, memory: 256Mi}
  checkpoint: {volume: 1Gi, deletionPolicy: delete}
  retries: 5
"""


class Run(NamedTuple):
    """A job of the examples on the nodes."""

    node: RealNode
    kube: KubeClient
    name: str
    results: Path
    """Its checkpoint volume."""

    def pods(self, role: str) -> dict[str, dict[str, Any]]:
        """The pods of a role that have not ended, by index."""
        found = self.kube.list("v1", "Pod", TEAM, label_selector=f"batch.kubernetes.io/job-name={self.name}-{role}")
        return {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod
            for pod in found
            if pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]
        }

    def delete(self, role: str, index: int) -> None:
        """Delete a pod, and wait until another one runs in its place."""
        pod = self.pods(role)[str(index)]
        began = time.monotonic()
        self.kube.delete("v1", "Pod", pod["metadata"]["name"], TEAM)
        self.kube.wait_gone("v1", "Pod", pod["metadata"]["name"], TEAM, timeout=TIMEOUT)
        print(f"{role}-{index} was gone after {time.monotonic() - began:.1f} s")
        self.wait(lambda: self._runs_anew(role, index, pod["metadata"]["uid"]))
        print(f"{role}-{index} ran again after {time.monotonic() - began:.1f} s")

    def _runs_anew(self, role: str, index: int, before: str) -> bool:
        pod = self.pods(role).get(str(index))
        return pod is not None and pod["metadata"]["uid"] != before and pod["status"]["phase"] == "Running"

    def kill(self, role: str, index: int, program: str) -> None:
        """Kill a program in a pod by SIGKILL."""
        pod = self.pods(role)[str(index)]
        machine = self.node.names.index(pod["spec"]["nodeName"])
        found = self.node.run("pgrep", "--full", program, node=machine).stdout.split()
        groups = {pid: self.node.run("cat", f"/proc/{pid}/cgroup", node=machine).stdout for pid in found}
        own = [pid for pid, group in groups.items() if pod["metadata"]["uid"] in group]
        assert own, (program, pod["status"])
        self.node.run("kill", "-9", *own, node=machine)

    def count(self, pattern: str) -> int:
        return len(list(self.results.glob(pattern)))

    def open(self, gate: int) -> None:
        (self.results / f"open-{gate}").touch()

    def held(self) -> set[str]:
        """The processes that have come to the gate of the fourth step."""
        return {path.name.removeprefix("step-").removesuffix("-0004") for path in self.results.glob("step-*-0004")}

    def release(self) -> set[str]:
        """Open the gates of these processes."""
        held = self.held()
        for each in held:
            (self.results / f"open-{each}").touch()
        return held

    def wait(self, condition: Callable[[], object]) -> None:
        wait_until(condition, timeout=TIMEOUT, details=self.state)

    def succeeded(self, role: str = "worker") -> bool:
        conditions = self.kube.get("batch/v1", "Job", f"{self.name}-{role}", TEAM)["status"].get("conditions") or []
        assert not any(each["type"] == "Failed" for each in conditions), self.state()
        return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)

    def state(self) -> str:
        """What the pods and their logs say, for messages."""
        lines = [str(sorted(path.name for path in self.results.iterdir())[-30:])]
        for pod in self.kube.list("v1", "Pod", TEAM):
            name, status = pod["metadata"]["name"], pod["status"]
            lines.append(f"-- {name} on {pod['spec'].get('nodeName')}: {status}")
            for each in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
                try:
                    lines.append(self.node.logs(TEAM, name, f"--container={each['name']}", "--tail=30"))
                except Exception as error:
                    lines.append(str(error))
        return "\n".join(lines)


@pytest.fixture(scope="package")
def training_image(node: RealNode, request: pytest.FixtureRequest) -> str:
    """Reference of an image with the examples' scripts, and `gated.py`."""
    with building(request):
        return node.image(image.training(ROOT / "examples/training/scripts", ROOT / "tests/e2e/scripts"))


@pytest.fixture
def run(node: RealNode, kube: KubeClient, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A job's volume, before the job."""
    name: str = request.param
    results = node.shared(name)
    claim = {"name": f"{name}-checkpoint", "namespace": TEAM}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": claim,
        "hostPath": {"path": str(results)},
    }
    kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    yield Run(node, kube, name, results)
    kube.delete("v1", "PersistentVolume", name)


@pytest.mark.parametrize("run", ["scores"], indirect=True)
def test_an_elastic_job_loses_workers_and_its_master(run: Run, repository: Repository, training_image: str) -> None:
    repository.write("scores.yaml", ELASTIC.replace("IMAGE", training_image))
    run.wait(lambda: run.count("[0-9]*.npy") >= 16 and len(run.pods("worker")) == 4)
    run.wait(lambda: {each.name.split("-")[1] for each in run.results.glob("task-*")} == set("0123"))
    run.delete("worker", 2)
    run.kill("master", 0, "avactl elastic master")
    run.open(16)
    run.wait(lambda: run.count("[0-9]*.npy") >= 40)
    # The leader itself, and a master that has nothing but the ConfigMap.
    run.delete("worker", 0)
    run.delete("master", 0)
    run.open(40)
    run.wait(run.succeeded)
    run.wait(lambda: run.succeeded("master"))
    features, weights = data()[0], np.linspace(-1, 1, FEATURES)
    files = sorted(run.results.glob("[0-9]*.npy"))
    assert np.concatenate([np.load(file) for file in files]) == pytest.approx(features @ weights)
    # Each task is one file, and was computed again only where its worker was deleted.
    assert len(files) == TASKS
    assert TASKS <= run.count("task-*") <= TASKS + 2
    repository.remove("scores.yaml")


@pytest.mark.parametrize("run", ["reduced"], indirect=True)
def test_an_all_reduce_job_starts_again_after_losses(
    run: Run, kube: KubeClient, repository: Repository, training_image: str
) -> None:
    repository.write("reduced.yaml", ALL_REDUCE.replace("IMAGE", training_image))
    run.wait(lambda: len(run.held()) == 3)
    run.delete("worker", 1)
    # The others notice in their next step, fail, and are started again with it.
    before = run.release()
    run.wait(lambda: len(run.held() - before) == 3)
    # The worker to which all others connect.
    run.kill("worker", 0, "scripts/gated.py")
    before |= run.release()
    run.wait(lambda: len(run.held() - before) == 3)
    run.open(3)
    run.wait(run.succeeded)
    assert np.load(run.results / "weights.npy") == pytest.approx(plain_weights())
    # Each loss fails the three workers once, and nothing else does.
    assert kube.get("batch/v1", "Job", "reduced-worker", TEAM)["status"]["failed"] == 6
    repository.remove("reduced.yaml")


def data() -> tuple[np.ndarray, np.ndarray]:
    """The data of examples/training/scripts/linear.py."""
    random = np.random.default_rng(7)
    features = random.normal(size=(RECORDS, FEATURES))
    return features, features @ random.normal(size=FEATURES) + 0.1 * random.normal(size=RECORDS)


def plain_weights() -> np.ndarray:
    """The weights after ten epochs of gradient descent in one process."""
    features, targets = data()
    weights = np.zeros(FEATURES)
    for _ in range(10):
        weights -= 0.1 / RECORDS * 2 * features.T @ (features @ weights - targets)
    return weights
