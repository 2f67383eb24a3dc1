"""avactl's scheduler as pods of its own image: it places what specs compile to, under the cluster's own policies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pods import TIMEOUT
from tools.controlplane import ApiError, KubeClient
from tools.realnode import RealNode

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]

SPECS = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: lab}
spec:
  daemons: {scheduler: true}
  images: {avactl: "AVACTL"}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: t4}
spec: {cluster: lab, machineType: t4, nodes: [node-0, node-1]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: T4, guaranteed: 2}]}
"""
JOB = """\
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: count, team: vision}
spec:
  image: "IMAGE"
  command: [sh, -c, "id -u; echo counted"]
  workers: {cpu: 100m, memory: 32Mi}
"""


@pytest.fixture
def repository(tmp_path: Path, avactl_image: str) -> Path:
    """A git repository with a platform of the two nodes."""
    path = tmp_path / "specs"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    commit(path, SPECS.replace("AVACTL", avactl_image))
    return path


def git(path: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    subprocess.run(["git", "-C", str(path), *author, *arguments], check=True, capture_output=True)


def commit(path: Path, specs: str) -> None:
    (path / "platform.yaml").write_text(specs)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message=change")


def reconcile(node: RealNode, path: Path) -> None:
    """Apply the repository, and wait until everything is healthy."""
    command = [sys.executable, "-m", "avactl.cli.main", "reconcile", str(path), "--kubeconfig", str(node.kubeconfig)]
    done = subprocess.run([*command, "--timeout=5m"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_compiled_job_runs(node: RealNode, kube: KubeClient, repository: Path, busybox: str) -> None:
    reconcile(node, repository)
    # Both replicas answer their probes, with a read-only root and without privileges.
    kube.wait_for("apps/v1", "Deployment", "avactl-scheduler", "avactl-system", until=all_ready, timeout=TIMEOUT)
    commit(repository, (repository / "platform.yaml").read_text() + JOB.replace("IMAGE", busybox))
    reconcile(node, repository)
    kube.wait_for("batch/v1", "Job", "count-worker", "vision", until=succeeded, timeout=TIMEOUT)
    (pod,) = kube.list("v1", "Pod", "vision")
    assert pod["spec"]["schedulerName"] == "avactl"
    assert node.logs("vision", pod["metadata"]["name"]) == "1000\ncounted\n"
    # The policies that were applied hold: nobody goes past the scheduler.
    assert pod["spec"]["nodeName"] in node.names
    with pytest.raises(ApiError, match="node-name"):
        kube.create({**pod, "metadata": {"name": "direct", "namespace": "vision"}})


def all_ready(deployment: dict[str, Any]) -> bool:
    return bool(deployment.get("status", {}).get("readyReplicas") == 2)


def succeeded(job: dict[str, Any]) -> bool:
    return bool(job.get("status", {}).get("succeeded") == 1)
