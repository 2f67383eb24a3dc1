"""avactl's scheduler as pods of its own image: it places what specs compile to, under the cluster's own policies."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.e2e.platform import Repository
from tests.e2e.pods import TIMEOUT
from tools.controlplane import ApiError, KubeClient
from tools.realnode import RealNode

pytestmark = [pytest.mark.e2e, pytest.mark.short, pytest.mark.xdist_group("real-nodes")]

JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: count, team: vision}
spec:
  image: "IMAGE"
  command: [sh, -c, "id -u; echo counted"]
  workers: {cpu: 100m, memory: 32Mi}
"""


def test_a_compiled_job_runs(node: RealNode, kube: KubeClient, repository: Repository, busybox: str) -> None:
    # Both replicas answer their probes, with a read-only root and without privileges.
    kube.wait_for("apps/v1", "Deployment", "avactl-scheduler", "avactl-system", until=all_ready, timeout=TIMEOUT)
    daemons = kube.list("v1", "Pod", "avactl-system", label_selector="app.kubernetes.io/component=scheduler")
    assert len(daemons) == 2
    for pod in daemons:
        runs_confined(node, pod)
    repository.write("count.yaml", JOB.replace("IMAGE", busybox))
    kube.wait_for("batch/v1", "Job", "count-worker", "vision", until=succeeded, timeout=TIMEOUT)
    (pod,) = kube.list("v1", "Pod", "vision", label_selector="batch.kubernetes.io/job-name=count-worker")
    assert pod["spec"]["schedulerName"] == "avactl"
    assert node.logs("vision", pod["metadata"]["name"]) == "1000\ncounted\n"
    # The policies that were applied hold: nobody goes past the scheduler.
    assert pod["spec"]["nodeName"] in node.names
    with pytest.raises(ApiError, match="node-name"):
        kube.create({**pod, "metadata": {"name": "direct", "namespace": "vision"}})


def runs_confined(node: RealNode, pod: dict[str, Any]) -> None:
    """No shell starts the daemon, it is not root, and it cannot write where its image is."""
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["avactl", "scheduler"]
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    assert "Uid:\t1000\t1000\t1000\t1000\n" in node.exec(namespace, name, "cat", "/proc/1/status")
    assert node.exec(namespace, name, "readlink", "/proc/1/exe").startswith("/usr/bin/python3")
    for place in ("/there", "/usr/local/lib/there", "/tmp/there"):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            node.exec(namespace, name, "touch", place)
        assert "Read-only file system" in refused.value.stderr


def all_ready(deployment: dict[str, Any]) -> bool:
    return bool(deployment.get("status", {}).get("readyReplicas") == 2)


def succeeded(job: dict[str, Any]) -> bool:
    return bool(job.get("status", {}).get("succeeded") == 1)
