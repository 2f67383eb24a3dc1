"""A compiled health check on two nodes, one of which loses large packets between pods."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from avactl.base.quantity import parse_quantity
from avactl.contracts import names
from avactl.kinds.training.init_containers import health_check
from tests.e2e.platform import Repository
from tests.e2e.test_training import TEAM, Run, plain_weights, run, training_image
from tools.controlplane import KubeClient
from tools.realnode import RealNode
from tools.realnode.config import POD_NETWORK

pytestmark = pytest.mark.e2e
__all__ = ["run", "training_image"]  # fixtures
WORKER = 0.2
"""CPU cores of a worker."""
CHECKED = f"""\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: checked, team: vision}}
spec:
  strategy: allReduce
  framework: custom
  image: "IMAGE"
  command: [python, scripts/all_reduce.py]
  workers: {{replicas: 3, cpu: {WORKER * 1000:.0f}m, memory: 256Mi}}
  checkpoint: {{volume: 1Gi, deletionPolicy: delete}}
  healthCheck: {{timeout: 5s, size: 1Mi}}
  retries: 0
"""
LOSES = (
    "FORWARD",
    "-s",
    POD_NETWORK,
    "-d",
    POD_NETWORK,
    "-p",
    "tcp",
    "-m",
    "length",
    "--length",
    "1000:",
    "-j",
    "DROP",
)
"""As a network does whose packets may be smaller than its interfaces say."""


@pytest.mark.parametrize("run", ["checked"], indirect=True)
def test_a_worker_on_a_bad_node_is_replaced_on_another_one(
    run: Run, node: RealNode, kube: KubeClient, repository: Repository, training_image: str, busybox: str
) -> None:
    # One worker fits on node-1, and the two others on node-0.
    for index, fitting in enumerate((2, 1)):
        block(kube, node.names[index], busybox, fitting)
    node.run("iptables", "-I", *LOSES, node=1)
    apply = threading.Thread(target=repository.write, args=("checked.yaml", CHECKED.replace("IMAGE", training_image)))
    apply.start()
    run.wait(lambda: len(list(filter(None, places(run).values()))) == 3)
    before = places(run)
    assert sorted(before.values()) == [node.names[0], node.names[0], node.names[1]]
    (bad,) = [index for index, name in before.items() if name == node.names[1]]
    first = run.pods("worker")[bad]["metadata"]["name"]
    for name in node.names:
        kube.delete("v1", "Pod", f"block-{name}", "default")
    run.wait(run.succeeded)
    apply.join()
    node.run("iptables", "-D", *LOSES, node=1)
    ended = kube.get("v1", "Pod", first, TEAM)["status"]
    (check,) = [each for each in ended["initContainerStatuses"] if each["name"] == health_check.CONTAINER]
    assert check["state"]["terminated"]["exitCode"] == names.REPLACED_EXIT
    assert "this worker is replaced: " in check["state"]["terminated"]["message"]
    print(check["state"]["terminated"]["message"])
    pods = kube.list("v1", "Pod", TEAM, label_selector="batch.kubernetes.io/job-name=checked-worker")
    assert {each["spec"]["nodeName"] for each in pods if each["status"]["phase"] == "Succeeded"} == {node.names[0]}
    assert len(pods) == 4
    assert not kube.get("batch/v1", "Job", "checked-worker", TEAM)["status"].get("failed")
    assert np.load(run.results / "weights.npy") == pytest.approx(plain_weights())
    repository.remove("checked.yaml")


def places(run: Run) -> dict[str, str]:
    return {index: pod["spec"].get("nodeName", "") for index, pod in run.pods("worker").items()}


def block(kube: KubeClient, node: str, image: str, workers: int) -> None:
    """Fill a node except for some workers."""
    free = float(parse_quantity(kube.get("v1", "Node", node)["status"]["allocatable"]["cpu"]))
    for pod in kube.list("v1", "Pod"):
        if pod["spec"].get("nodeName") == node and pod["status"]["phase"] in ("Pending", "Running"):
            free -= sum(
                float(parse_quantity(each.get("resources", {}).get("requests", {}).get("cpu", "0")))
                for each in pod["spec"]["containers"]
            )
    cpu = f"{(free - WORKER * (workers + 0.5)) * 1000:.0f}m"
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": cpu}},
    }
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"block-{node}", "namespace": "default"},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
    )
