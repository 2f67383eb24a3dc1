"""The commands for owners of a job, on real kubelets: an experiment is started, followed, and waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.platform import Repository
from tests.e2e.pods import TIMEOUT
from tests.jobs.following import Following
from tools.controlplane import KubeClient
from tools.realnode import RealNode
from tools.waiting import wait_until

pytestmark = pytest.mark.e2e

TEAM = """\
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: logs}
spec: {members: {groups: [logs]}}
"""
JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: count, team: logs}
spec:
  framework: custom
  strategy: allReduce
  image: "IMAGE"
  command: [sh, -c, 'i=0; while ! [ -e ~/end ]; do i=$((i+1)); echo "line $i"; sleep 0.1; done; exit $(cat ~/end)']
  workers: {replicas: 2, cpu: 100m, memory: 32Mi}
"""


def test_an_experiment_from_start_to_end(
    node: RealNode, kube: KubeClient, repository: Repository, busybox: str
) -> None:
    repository.write("logs.yaml", TEAM)
    spec = repository.path / "count.yaml"  # not committed
    spec.write_text(JOB.replace("IMAGE", busybox))
    words = [sys.executable, "-m", "avactl.cli.main"]
    config = ["--kubeconfig", str(node.kubeconfig)]

    def avactl(*arguments: str) -> str:
        done = subprocess.run(
            [*words, *arguments, *config], cwd=repository.path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    place = avactl("run", "count.yaml", "--now", "--for", "10m", "--keep", "1s").split()[0]
    spec.unlink()
    name = place.partition("/")[2]

    def pod(index: int) -> str:
        """Return the running pod of an index."""
        labels = f"batch.kubernetes.io/job-name={name}-worker,batch.kubernetes.io/job-completion-index={index}"
        found = kube.list("v1", "Pod", "logs", label_selector=labels)
        return next((each["metadata"]["name"] for each in found if each["status"].get("phase") == "Running"), "")

    def end(index: int, code: int) -> None:
        node.exec("logs", pod(index), "sh", "-c", f"echo {code} > ~/end")

    logs = Following([*words, "logs", place, "-f", *config])
    wait = Following([*words, "wait", place, *config])
    try:
        wait_until(lambda: "worker-0 │ line 9" in logs.lines and "worker-1 │ line 9" in logs.lines)
        node.plane.kill("kube-apiserver")
        wait_until(lambda: "no answer" in logs)
        node.plane.start("kube-apiserver")
        seen = len(logs.lines)
        wait_until(lambda: len(logs.lines) > seen + 50)
        first = pod(1)
        end(1, 3)
        wait_until(lambda: "worker-1 │ failed: worker: exit code 3" in logs)
        wait_until(lambda: pod(1) not in ("", first))
        wait_until(lambda: logs.lines.count("worker-1 │ line 5") == 2)
        end(0, 0)
        end(1, 0)
        assert (logs.end(), wait.end()) == (0, 0)
    finally:
        for each in (logs, wait):
            each.process.kill()
    assert logs.lines[-1] == "the job has succeeded"
    # None is missing, and none is doubled, though the connection was lost.
    counted = [line for line in logs.lines if line.startswith("worker-0 │ line")]
    assert counted == [f"worker-0 │ line {number + 1}" for number in range(len(counted))]
    # Everything of the experiment is deleted by the cluster.
    kube.wait_gone("batch/v1", "Job", f"{name}-worker", "logs", timeout=TIMEOUT)
    wait_until(lambda: not kube.list("v1", "Service", "logs", label_selector="avactl.dev/experiment"))
